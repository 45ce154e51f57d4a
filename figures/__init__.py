"""Runs, judges and draws the benches of fenxi."""

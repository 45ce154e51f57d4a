"""Builds the C helper that machines other than x86-64 need; without a compiler it is left out."""

from setuptools import Extension, setup

setup(ext_modules=[Extension("fenxi_observe._copy", ["fenxi_observe/_copy.c"], optional=True)])

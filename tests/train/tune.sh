#!/bin/sh
# A model learns on where it runs: fenxi samples live traffic, fenxi-tune learns from it and offers a model, fenxi judges it and
# swaps. What happens is in tune.py; this makes it a network namespace with a wire, `a` to `b`.
# usage: tests/train/tune.sh [FENXI]     FENXI: the program (default target/release/fenxi)
#   PYTHON        a Python with the trainer (default as in models/train/run.sh)
# Skipped without root, unless FENXI_REQUIRE_ALL=1.
set -eu

cd "$(dirname "$0")/../.."
fenxi=${1:-target/release/fenxi}
[ -n "${PYTHON:-}" ] || export PYTHONPATH=models/train PYTHONDONTWRITEBYTECODE=1
space=fenxi-tune-$$
if ! ip netns add "$space" 2>/dev/null; then
    echo "SKIPPED tune: needs root and the program ip"
    [ "${FENXI_REQUIRE_ALL:-0}" = 1 ] && exit 1
    exit 0
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/fenxi-tune.XXXXXX")
trap 'ip netns del "$space"; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
ip netns exec "$space" sh -c '
    sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
    ip link add dev a type veth peer name b && ip link set dev a up && ip link set dev b up
    until [ "$(ip -o link show up | grep -c "state UP")" = 2 ]; do sleep 0.1; done'
ip netns exec "$space" "${PYTHON:-target/train-venv/bin/python}" tests/train/tune.py "$fenxi" "$work" || {
    tail -n 50 "$work"/*.log
    exit 1
}
echo "tune: passed"

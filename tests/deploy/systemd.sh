#!/usr/bin/env bash
# systemd.sh BUILD_FOLDER: deploy/systemd/ddp-rendezvous.service, as it is installed, has no mistake that systemd knows
# of, and leaves the daemon little that it could do to the machine.
set -eu
build=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { printf 'error: %s\n' "$@"; exit 1; }
if ! command -v systemd-analyze >/dev/null; then
  printf 'Skipped\nsystemd-analyze is not installed; ./test.sh --interop installs it\n'
  exit 77
fi

DESTDIR=$scratch cmake --install "$build" --prefix /usr >/dev/null
unit=$scratch/usr/lib/systemd/system/ddp-rendezvous.service
documentation=$(sed -n 's/^Documentation=file://p' "$unit")
{ [ "${documentation##*/}" = deployment.md ] && [ -s "$scratch$documentation" ]; } ||
  fail "the unit names $documentation, which is not installed"
sed -i "s#^ExecStart=/usr/#ExecStart=$scratch/usr/#" "$unit"
said=$(systemd-analyze verify --man=no "$unit" 2>&1) || fail "systemd-analyze verify:" "$said"
[ -z "$said" ] || fail "systemd-analyze verify:" "$said"

# 0.0 to 10.0, from all shut to all open.
exposure=$(systemd-analyze security --no-pager --offline=true "$unit" |
  sed -n 's/.*Overall exposure level for .*: \([0-9.]*\) .*/\1/p')
awk -v exposure="$exposure" 'BEGIN { exit !(exposure != "" && exposure < 3) }' ||
  fail "systemd-analyze security: $exposure, not below 3"

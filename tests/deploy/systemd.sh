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

# 0.0 to 10.0, from all shut to all open: 20 is 2.0.
report=$(systemd-analyze security --no-pager --offline=true --threshold=20 "$unit") ||
  fail "systemd-analyze security: not below 2.0" "$report"
# What the daemon needs: the host's network and a netlink socket; ProtectClock= itself allows the device. A root of its
# own and the addresses of peers are the site's.
needs='DeviceAllow=
IPAddressDeny=
PrivateNetwork=
RestrictAddressFamilies=~AF_(INET|INET6)
RestrictAddressFamilies=~AF_NETLINK
RootDirectory=/RootImage='
open=$(awk '$1 == "✗" { print $2 }' <<<"$report" | LC_ALL=C sort)
[ "$open" = "$needs" ] ||
  fail "systemd-analyze security: open without need, or no longer open:" "$(diff <(echo "$needs") <(echo "$open"))"

# The token: systemd hands it over, so no variable and no file that another user can read has it.
has() { grep -qxF "$1" "$unit" || fail "the unit lacks $1"; }
has 'LoadCredential=token:/etc/ddprun/token'
# shellcheck disable=SC2016  # systemd expands these
grep -qE '^ExecStart=.* --token-file=\$\{CREDENTIALS_DIRECTORY\}/token ' "$unit" || fail "the daemon has another token"
! grep -E '^[^#]*DDPRUN_TOKEN' "$unit" || fail "the token is in the environment"
has 'AssertFileNotEmpty=/etc/ddprun/token'
has 'LimitCORE=0'

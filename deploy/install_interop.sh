#!/usr/bin/env bash
# Installs the real peers of the tests: the shells that completions are for, Slurm, the mpiruns, what makes a bare
# Debian and checks a systemd unit; and PyTorch and others (tests/interop/requirements.txt, about 5.4 GB) in a Python
# environment of their own, build/interop/venv. That is made once, and again only where the versions asked for have
# changed.
set -eu
cd "$(dirname "$0")/.."
pins=tests/interop/requirements.txt
venv=build/interop/venv
log=build/interop/install.log
./deploy/install_packages.sh zsh fish slurm-wlm openmpi-bin mpich debootstrap systemd
cmp -s "$pins" "$venv/requirements.txt" && exit 0

python3 -c 'import ensurepip, venv' 2>/dev/null || ./deploy/install_packages.sh python3-venv
mkdir -p build/interop
echo "installing the peers of the interop tests into $venv; the log is $log"
{
  python3 -m venv --clear "$venv"
  "$venv/bin/pip" install --no-input --disable-pip-version-check -r "$pins"
} >"$log" 2>&1 || {
  tail -n 20 "$log" >&2
  echo "error: the Python packages in $pins could not be installed" >&2
  echo "where: deploy/install_interop.sh; all of the log is in $log" >&2
  echo "try:   again with a connection to PyPI and 12 GB of free disk, or leave out \`--interop\`" >&2
  exit 1
}
cp "$pins" "$venv/"  # last: what says that all of it is there

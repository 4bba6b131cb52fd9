#!/usr/bin/env bash
# Puts the real peers of the interop tests (tests/interop/requirements.txt: PyTorch and others, about 5.4 GB) into a Python
# environment of their own, build/interop/venv. Once: it is made again only where the versions asked for have changed.
set -eu
cd "$(dirname "$0")/.."
pins=tests/interop/requirements.txt
venv=build/interop/venv
log=build/interop/install.log
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

#!/usr/bin/env bash
# Installs the real peers of the tests. Without an argument, both parts:
#   packages  Debian's: the shells that completions are for, Slurm, the mpiruns, ssh and its server, what makes a bare
#             Debian and an .rpm, pkg-config, and what checks a systemd unit
#   python    PyTorch and others (tests/interop/requirements.txt, about 4.7 GB) in a Python environment of their own,
#             build/interop/venv. It is made once, and again only if the versions asked for have changed.
set -eu
cd "$(dirname "$0")/.."
pins=tests/interop/requirements.txt
venv=build/interop/venv
log=build/interop/install.log
part=${1:-both}
case "$part" in
  both | packages | python) ;;
  *)
    echo "error: there is no part '$part'" >&2
    echo "where: deploy/install_interop.sh $*" >&2
    echo "try:   \`packages\`, \`python\`, or no argument for both" >&2
    exit 2
    ;;
esac
if [ "$part" != python ]; then
  ./deploy/install_packages.sh zsh fish slurm-wlm openmpi-bin mpich openssh-client openssh-server debootstrap \
    systemd rpm pkgconf
  python3 -c 'import ensurepip, venv' 2>/dev/null || ./deploy/install_packages.sh python3-venv
fi
[ "$part" = packages ] && exit 0
cmp -s "$pins" "$venv/requirements.txt" && exit 0

mkdir -p build/interop
echo "installing the peers of the interop tests into $venv; the log is $log"
{
  python3 -m venv --clear "$venv"
  # uv installs the rest in a quarter of pip's time. Its cache shares its files with the environment, and is kept out of
  # the home directory.
  "$venv/bin/pip" install --no-input --disable-pip-version-check uv==0.9.30
  # Triton, 1 GB, is what PyTorch compiles kernels for GPUs with; it does without where there is none.
  echo "triton; sys_platform == 'none'" >build/interop/left_out.txt
  UV_CACHE_DIR=$PWD/build/interop/cache "$venv/bin/uv" pip install --compile-bytecode \
    --python "$venv/bin/python" --override build/interop/left_out.txt -r "$pins"
  rm -rf build/interop/cache
} >"$log" 2>&1 || {
  tail -n 20 "$log" >&2
  echo "error: the Python packages in $pins could not be installed" >&2
  echo "where: deploy/install_interop.sh; all of the log is in $log" >&2
  echo "try:   again with a connection to PyPI and 10 GB of free disk, or leave out \`--interop\`" >&2
  exit 1
}
cp "$pins" "$venv/"  # last: what says that all of it is there

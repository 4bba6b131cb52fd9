#!/usr/bin/env bash
# Installs the distribution's packages that building and testing need, and names each. As root, by sudo, or, without
# either, prints the one line to run and stops. Does nothing where all are there. Debian 12 or newer, or a relative of
# it. Arguments are names of further packages.
set -eu
cd "$(dirname "$0")/.."
mkdir -p build

packages=(
  g++ cmake ninja-build
  libboost1.81-dev nlohmann-json3-dev libcli11-dev  # ddprun, its error files, flags of the other programs
  libspdlog-dev                                     # logs for operators
  libssl-dev                                        # TLS between the nodes of a job that has a token
  libxxhash-dev                                     # checksums of checkpoints
  libhwloc-dev                                      # cores and memory of the machine, for --numa-binding
  libopenblas-serial-dev                            # products of matrices, for examples/train_transformer
  libgtest-dev libgmock-dev                         # tests
  iproute2                                          # tests over several hosts
  spin                                              # tests of the meeting of ranks as a model
  openssl python3                                   # the commands of docs/guide, which a test runs
  "$@"
)

if ! command -v dpkg-query >/dev/null; then
  echo "error: this system has no dpkg" >&2
  echo "where: deploy/install_packages.sh" >&2
  echo "try:   install the equivalents of: ${packages[*]}; then use cmake --workflow --preset release" >&2
  exit 2
fi

missing=()
for package in "${packages[@]}"; do
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

install="apt-get install -y --no-install-recommends ${missing[*]}"
if [ "$(id -u)" -eq 0 ]; then
  as_root=()
elif command -v sudo >/dev/null; then
  as_root=(sudo)
else
  echo "error: these packages are missing, and only root can install them: ${missing[*]}" >&2
  echo "where: deploy/install_packages.sh, as $(id -un), without sudo" >&2
  echo "try:   su -c 'apt-get update && $install'" >&2
  exit 2
fi
echo "installing: ${missing[*]}"
{
  "${as_root[@]}" apt-get update -q
  # shellcheck disable=SC2086
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive $install
} >build/packages.log 2>&1 || {
  tail -n 20 build/packages.log >&2
  echo "error: the packages could not be installed; all of the log is in build/packages.log" >&2
  exit 1
}

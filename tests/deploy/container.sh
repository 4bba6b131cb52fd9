#!/usr/bin/env bash
# container.sh BUILD_FOLDER: deploy/container/Containerfile without a registry. What it copies is there and is enough to
# configure the build; its install line, run on this build, gives the files that its other stages copy; and the main job
# runs by its entry point, as its user and without a right to write, over those of its base's libraries that Debian 12
# has.
set -eu
build=$1
tree=$(cd "$(dirname "$0")/../.." && pwd)
file=$tree/deploy/container/Containerfile
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
skip() { printf 'Skipped\n%s\n' "$1"; exit 77; }
fail() { printf 'error: %s\n' "$@"; exit 1; }
run_line() { sed -n "s/^RUN \(.*$1.*\)/\1/p" "$file" | grep . || fail "the Containerfile has no RUN with $1"; }

mkdir "$scratch/src"
while read -ra words; do  # COPY SOURCE... TO
  to=${words[-1]}
  for from in "${words[@]:1:${#words[@]}-2}"; do cp -r "$tree/$from" "$scratch/src/$to"; done
done < <(grep '^COPY [^-]' "$file")
(cd "$scratch/src" && eval "$(run_line 'cmake --preset')") >"$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
missing=$(grep -rhoE "\"$scratch/src/[^\"]+\"" --include=cmake_install.cmake "$scratch/src/build/release" |
  tr -d '"' | sort -u | grep -v "^$scratch/src/build/" |
  while read -r path; do [ -e "$path" ] || echo "  ${path#"$scratch/src/"}"; done)
[ -z "$missing" ] || fail "the Containerfile copies too little; what is installed has also:" "$missing"

install=$(run_line 'cmake --install')
install=${install//\/image/$scratch/image}
install=${install//build\/release/$build}
eval "$install" >"$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
base=$scratch/base
mkdir -p "$base/proc" "$base/tmp" "$base/dev"
while read -ra words; do  # COPY --from=build SOURCE... TO
  to=$base${words[-1]}
  mkdir -p "$to"
  for from in "${words[@]:2:${#words[@]}-3}"; do
    from=${from/#\/image/$scratch/image}
    from=${from/#\/src\/build\/release/$build}
    from=${from/#\/src/$tree}
    if [ -d "$from" ]; then cp -r "$from/." "$to"; else cp "$from" "$to"; fi
  done
done < <(grep '^COPY --from=build' "$file")
user=$(sed -n 's/^USER \([1-9][0-9]*\):[1-9][0-9]*$/\1/p' "$file")
[ -n "$user" ] || fail "the user is no number other than 0, which Kubernetes' runAsNonRoot asks for"
entry=$(sed -n 's/^ENTRYPOINT \["\(.*\)"\]$/\1/p' "$file")
[ -x "$base$entry" ] || fail "the image has no $entry"

[ "$(id -u)" = 0 ] || skip "only root can run what the container holds, elsewhere than in one"
grep -q '^VERSION_CODENAME=bookworm' /etc/os-release || skip "this is no Debian 12, of which the base's libraries are"
unshare --mount --pid --net --fork true 2>/dev/null || skip "this machine refuses namespaces"
for library in $(dpkg -L libc6 libgcc-s1 libstdc++6 libssl3 | grep -E '/(lib[^/]*|ld-linux-x86-64)\.so\.[0-9.]+$'); do
  mkdir -p "$base$(dirname "$library")"
  cp -a "$library" "$base$(dirname "$library")/"
done
for folder in lib lib64; do [ -e "$base/$folder" ] || ln -s "usr/$folder" "$base/$folder"; done
# shellcheck disable=SC2016  # the shell in the namespaces expands these
out=$(timeout 100 unshare --mount --pid --net --fork --kill-child sh -euc '
  base=$1 user=$2 entry=$3
  ip link set lo up
  mount --bind "$base" "$base"
  mount -t proc proc "$base/proc"
  mount -t tmpfs tmpfs "$base/tmp"
  mount -t tmpfs tmpfs "$base/dev"
  mknod -m 666 "$base/dev/null" c 1 3
  mount -o remount,bind,ro "$base"
  exec env -i "$(command -v setpriv)" --no-new-privs --inh-caps=-all \
    "$(command -v chroot)" --userspec="$user:$user" --groups= "$base" "$entry" --standalone --nproc-per-node=2 \
    /opt/train_breast_cancer/train_breast_cancer --data=/opt/train_breast_cancer/breast_cancer.csv --epochs=2 \
    --checkpoint-dir=/tmp/checkpoints
  ' sh "$base" "$user" "$entry" 2>&1) || fail "the main job failed:" "$out"
echo "$out" | grep -q '^test accuracy ' || fail "the main job did not train:" "$out"

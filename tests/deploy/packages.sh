#!/usr/bin/env bash
# packages.sh BUILD_FOLDER: makes the packages, and looks at what is in them and at what each program and library in
# them asks for of the system.
set -eu
build=$1
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { printf 'error: %s\n' "$@"; exit 1; }

cpack --config "$build/CPackConfig.cmake" -B "$scratch/packages" >"$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
mkdir "$scratch/tar" "$scratch/deb"
tar -C "$scratch/tar" --strip-components=1 -xf "$scratch"/packages/*.tar.gz
dpkg-deb -x "$scratch"/packages/*.deb "$scratch/deb"

diff -r "$scratch/tar" "$scratch/deb/usr" || fail "the .deb and the .tar.gz differ"
version=$("$here/../../.ci/version")
[ "$(dpkg-deb -f "$scratch"/packages/*.deb Version)" = "$version" ] || fail "the .deb has another version than $version"
if command -v rpmbuild >/dev/null; then
  rpm=$(echo "$scratch"/packages/*.rpm)
  mkdir "$scratch/rpm"
  (cd "$scratch/rpm" && cmake -E tar xf "$rpm")
  diff -r "$scratch/rpm/usr" "$scratch/deb/usr" || fail "the .rpm and the .deb differ"
  [ "$(rpm -qp --queryformat '%{VERSION}' "$rpm")" = "$version" ] || fail "the .rpm has another version than $version"
  needs=$(rpm -qp --requires "$rpm" | grep -vE '^(rpmlib|/bin/sh)' || true)
  [ "$needs" = "glibc >= 2.28" ] || fail "the .rpm requires: $needs"
  of_others=$(rpm -qpl "$rpm" | grep -vE 'ddp|^/usr/share/doc/ddprun' || true)
  [ -z "$of_others" ] || fail "folders in the .rpm that other packages own:" "$of_others"
else
  echo "not checked: the .rpm, because rpmbuild is not installed; ./test.sh --interop installs it"
fi
for file in bin/ddprun bin/ddp-rendezvous bin/ddp-bench include/ddp/ddp.hpp lib/cmake/ddp/ddp-config.cmake \
  share/man/man1/ddprun.1 share/man/man1/ddp-rendezvous.1 share/man/man1/ddp-bench.1 share/pkgconfig/ddp.pc \
  share/ddprun/examples/train_elastic/main.cpp share/ddprun/slurm/one_node.sbatch \
  share/doc/ddprun/CHANGELOG.md share/bash-completion/completions/ddprun share/zsh/site-functions/_ddprun \
  share/fish/vendor_completions.d/ddprun.fish share/ddprun/kubernetes/train.yaml \
  lib/systemd/system/ddp-rendezvous.service share/doc/ddprun/LICENSE share/doc/ddprun/docs/exit_codes.md; do
  [ -s "$scratch/tar/$file" ] || fail "the packages lack $file"
done
strangers=$(find "$scratch/tar" \( -name '*_test' -o -name '*.a' -o -name '*.o' -o -perm /022 \) ! -type l)
[ -z "$strangers" ] || fail "not for the packages, or open to others' changes:" "$strangers"

of_glibc='lib(c|m|dl|pthread|rt)\.so\.[0-9]+|ld-linux-x86-64\.so\.2'
of_cpp='lib(stdc\+\+|gcc_s)\.so\.[0-9]+'
elf_files=0
while read -r file; do
  [ "$(head -c 4 "$file" | tail -c 3)" = ELF ] || continue
  elf_files=$((elf_files + 1))
  name=${file#"$scratch/tar/"}
  too_new=$(objdump -T "$file" |
    awk '{ for (i = 1; i < NF; ++i) if ($i ~ /^\(?GLIBC_/) { gsub(/[()]/, "", $i); print $i, $NF } }' |
    awk '{ split(substr($1, 7), v, "."); if ($1 !~ /^GLIBC_[0-9]/ || v[1] > 2 || v[2] > 28) print "  " $2 " " $1 }' |
    sort -u)
  [ -z "$too_new" ] || fail "$name asks for what glibc 2.28 lacks: it belongs into rendezvous/glibc" "$too_new"
  [ "$(objdump -T "$file" | grep -c GLIBC_)" -gt 50 ] || fail "$name: objdump shows no versions to look at"
  allowed=$of_glibc
  case $name in lib/*) allowed="$of_glibc|$of_cpp" ;; esac
  needed=$(readelf -d "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -vxE "$allowed" || true)
  [ -z "$needed" ] || fail "$name needs libraries that a bare system lacks: $needed"
  ! readelf -S "$file" | grep -q '\.debug_info' || fail "$name is not stripped"
  ! readelf -d "$file" | grep -E 'R(UN)?PATH' || fail "$name has a path of the machine that built it"
done < <(find "$scratch/tar" -type f)
[ "$elf_files" = 4 ] || fail "$elf_files programs and libraries instead of ddprun, ddp-rendezvous, ddp-bench and libddp"

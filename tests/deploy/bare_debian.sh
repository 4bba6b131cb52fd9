#!/usr/bin/env bash
# bare_debian.sh BUILD_FOLDER ROOT: installs the .deb in a Debian 11 that has nothing else (glibc 2.31; ROOT, made once
# by debootstrap) and trains there, as a user without privileges, on a kernel with no system call that is newer than
# 5.4.
set -eu
build=$1 root=$2
here=$(cd "$(dirname "$0")" && pwd)
skip() { printf 'Skipped\n%s\n' "$1"; exit 77; }
fail() { printf 'error: %s\n' "$@"; exit 1; }

[ "$(id -u)" = 0 ] || skip "only root can make a bare Debian"
command -v debootstrap >/dev/null || skip "debootstrap is not installed; ./test.sh --interop installs it"
unshare --mount --pid --net --fork true 2>/dev/null || skip "this machine refuses namespaces"
exec 9>"$root.lock"
flock 9
if [ ! -d "$root" ]; then
  umount "$root.partial/proc" 2>/dev/null || true  # of a run that was interrupted
  rm -rf "$root.partial"
  debootstrap --variant=minbase bullseye "$root.partial" >"$root.log" 2>&1 || {
    ! grep -q 'Failed getting release file' "$root.log" ||
      skip "Debian's archive is out of reach, so there is no bare Debian"
    tail -n 20 "$root.log"
    exit 1
  }
  mv "$root.partial" "$root"
fi
flock -u 9

# A copy, which shares the files themselves with ROOT: what dpkg and the test write is new files.
scratch=$(mktemp -d -p "$(dirname "$root")")
trap 'rm -rf "$scratch"' EXIT
bare=$scratch/root
cp -al "$root" "$bare"
cpack --config "$build/CPackConfig.cmake" -G DEB -B "$scratch/packages" >"$scratch/log" 2>&1 ||
  { cat "$scratch/log"; exit 1; }
mkdir "$bare/job"
rm -f "$bare/etc/hosts"
echo '127.0.0.1 localhost' >"$bare/etc/hosts"
cp "$scratch"/packages/*.deb "$build/bin/train_breast_cancer_alone" "$here/../../examples/data/breast_cancer.csv" \
  "$bare/job"
chmod 1777 "$bare/job" "$bare/tmp"

# in_bare USER COMMAND: in namespaces of its own, where COMMAND is the first process, as in a container.
in_bare() {
  # shellcheck disable=SC2016  # the shell in the namespaces expands these
  timeout 100 "$build/bin/as_on_linux_5_4" unshare --mount --pid --net --fork --kill-child sh -euc '
    ip link set lo up
    mount -t proc proc "$1/proc"
    exec chroot "$1" setpriv --reuid="$2" --regid="$2" --clear-groups \
      env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/job LD_BIND_NOW=1 sh -euc "cd /job; $3"
  ' sh "$bare" "$@"
}

in_bare 0 'dpkg -i ./*.deb' >"$scratch/log" 2>&1 || { cat "$scratch/log"; fail "the .deb can't be installed"; }

out=$(in_bare 65532 'exec ddprun --standalone --nproc-per-node=4 ./train_breast_cancer_alone --epochs 5 \
  --data breast_cancer.csv --checkpoint-dir /tmp/checkpoints' 2>&1) || fail "the main job failed:" "$out"
echo "$out" | grep -qE '^test accuracy 9' || fail "the main job did not train:" "$out"

# Two nodes that meet at a daemon: names, connections, the store, and the messages of both programs.
# shellcheck disable=SC2016  # the shell in the bare Debian expands these
out=$(in_bare 65532 '
  mkfifo daemon.out
  ddp-rendezvous --host 127.0.0.1 --port 29400 >daemon.out &
  daemon=$!
  exec 3<daemon.out
  read -r listens <&3  # otherwise a node might take the port
  for node in 0 1; do
    ddprun --nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d --rdzv-endpoint=localhost:29400 --rdzv-id=bare \
      --rdzv-conf=join_timeout=60 ./train_breast_cancer_alone --epochs 1 --data breast_cancer.csv \
      --checkpoint-dir /tmp/two_nodes &
    nodes="${nodes:-} $!"
  done
  for node in $nodes; do wait "$node"; done
  kill "$daemon"' 2>&1) || fail "two nodes failed:" "$out"
echo "$out" | grep -q '^test accuracy ' || fail "two nodes did not train:" "$out"

# Exceptions pass through code that is linked statically, by means that glibc 2.31 has.
code=0
out=$(in_bare 65532 'ddprun --no-such-option train' 2>&1) || code=$?
{ [ "$code" = 2 ] && echo "$out" | grep -q '^error: unknown option --no-such-option'; } ||
  fail "exit code $code:" "$out"
code=0
out=$(in_bare 65532 'ddprun --standalone --nproc-per-node=2 sh -c "kill -TERM \$\$"' 2>&1) || code=$?
{ [ "$code" = 143 ] && echo "$out" | grep -q 'was killed by SIGTERM'; } || fail "exit code $code:" "$out"

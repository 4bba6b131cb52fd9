#!/usr/bin/env bash
# systemd_service.sh BUILD_FOLDER: ddp-rendezvous.service, as it is installed, run by a systemd of its own: process 1 of
# namespaces, in a control group of its own, on a copy of this machine's files in memory. What the unit takes from the
# daemon is what the daemon can do without, and the token reaches the daemon alone.
set -eu
skip() { printf 'Skipped\n%s\n' "$1"; exit 77; }
fail() { printf 'error: %s\n' "$@"; exit 1; }

# In the namespaces: makes the root that systemd is to see, moves there, and becomes systemd.
become_systemd() {
  local scratch=$1 build=$2 root=$1/memory/root
  can() { "$@" 2>"$scratch/cannot" || { echo "$*: $(cat "$scratch/cannot")" >"$scratch/out/cannot"; exit 1; }; }
  mkdir "$scratch/memory"
  can mount -t tmpfs -o mode=755 tmpfs "$scratch/memory"
  mkdir "$scratch/memory/upper" "$scratch/memory/work" "$root"
  can mount -t overlay -o "lowerdir=/,upperdir=$scratch/memory/upper,workdir=$scratch/memory/work" overlay "$root"
  can mount -t proc proc "$root/proc"
  can mount --bind "$root/proc/sys" "$root/proc/sys"
  can mount -o remount,bind,ro "$root/proc/sys"
  can mount -t sysfs -o ro sysfs "$root/sys"
  can mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
  for each in run tmp dev; do can mount -t tmpfs -o mode=755 tmpfs "$root/$each"; done
  chmod 1777 "$root/tmp"
  for each in null zero full random urandom; do
    : >"$root/dev/$each"
    can mount --bind "/dev/$each" "$root/dev/$each"
  done
  ln -s /proc/self/fd "$root/dev/fd"
  ln -s pts/ptmx "$root/dev/ptmx"
  mkdir "$root/dev/shm" "$root/dev/pts" "$root/dev/mqueue" "$root/dev/hugepages" "$root/out" "$root/old"
  can mount -t tmpfs tmpfs "$root/dev/shm"
  can mount --bind "$scratch/out" "$root/out"
  can ip link set lo up

  DESTDIR=$root cmake --install "$build" --prefix /usr >/dev/null
  # The units of this machine are not to run: no unit has the dependencies that all have by default.
  rm -rf "$root/etc/systemd/system" "$root/etc/ddprun"
  mkdir -p "$root/etc/ddprun" "$root/etc/systemd/system/ddp-rendezvous.service.d"
  ln -s /dev/null "$root/etc/systemd/system/network-online.target"
  printf '[Unit]\nDefaultDependencies=no\n[Service]\nStandardOutput=append:/out/daemon\nStandardError=inherit\n' \
    >"$root/etc/systemd/system/ddp-rendezvous.service.d/test.conf"
  printf '[Unit]\nDefaultDependencies=no\nWants=look.service\n' >"$root/etc/systemd/system/look.target"
  cp "$0" "$root/look"
  cat >"$root/etc/systemd/system/look.service" <<'UNIT'
[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
StandardOutput=file:/out/seen
StandardError=file:/out/errors
ExecStart=/bin/bash /look --look
ExecStopPost=/bin/systemctl --force exit
UNIT
  cd "$root"
  pivot_root . old
  umount -l /old
  mount --make-rshared /  # as on a machine; credentials come by a mount
  exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --unit=look.target
}

# Under that systemd: prints what the test expects below.
look() {
  local unit=ddp-rendezvous pid
  show() { systemctl show -P "$1" "$unit"; }
  listens() { until [ "$(grep -c 'listens on port 29400' /out/daemon)" = "$1" ]; do sleep 0.1; done; }
  systemctl start "$unit" || true
  echo "without a token: assertion $(show AssertResult), $(show ActiveState)"
  echo too_short >/etc/ddprun/token
  systemctl start "$unit"
  until [ "$(show ActiveState)" = failed ] || [ "$(show NRestarts)" != 0 ]; do sleep 0.1; done
  echo "with a token that is too short: $(show ActiveState), exit code $(show ExecMainStatus)," \
    "$(show NRestarts) restarts"

  echo 7d3f0a5c_of_the_nodes >/etc/ddprun/token
  chmod 600 /etc/ddprun/token
  systemctl start "$unit"
  listens 1
  systemctl kill -s KILL "$unit"
  listens 2
  echo "after a crash: $(show NRestarts) restart"
  pid=$(show MainPID)
  awk '/^(CapPrm|CapBnd|NoNewPrivs|Seccomp):/ { print $1, $2 } /^Uid:/ { print "root:", $2 == 0 }' "/proc/$pid/status"
  awk '/core file size/ { print "core:", $5, $6 }' "/proc/$pid/limits"
  echo "token in the environment: $(grep -c 7d3f0a5c "/proc/$pid/environ")"
  echo "credentials: $(ls /run/credentials/*)"
  setpriv --reuid=54321 --regid=54321 --clear-groups cat /run/credentials/*/token 2>/dev/null ||
    echo "others can't read"

  # shellcheck disable=SC2016  # the workers' shell expands these
  for node in 0 1; do
    ddprun --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:29400 --rdzv-id=job \
      --token-file=/etc/ddprun/token --no-prefix sh -c 'echo "rank $RANK of $WORLD_SIZE"' >"/tmp/node_$node" &
    nodes="${nodes:-} $!"
  done
  for node in $nodes; do wait "$node"; done
  sort /tmp/node_0 /tmp/node_1
  systemctl stop "$unit"
  echo "stopped: $(show Result)"
}

case $1 in
  --become-systemd) become_systemd "$2" "$3" ;;
  --look) look; exit ;;
esac

[ "$(id -u)" = 0 ] || skip "only root can run a systemd of its own"
[ -x /lib/systemd/systemd ] || skip "systemd is not installed; ./test.sh --interop installs it"
unshare --mount --pid --net --uts --ipc --cgroup --fork true 2>/dev/null || skip "this machine refuses namespaces"
groups=$(findmnt -n -t cgroup2 -o TARGET | head -n 1)
[ -n "$groups" ] || skip "this machine has no control groups of version 2"
groups=$groups$(sed -n 's/^0:://p' /proc/self/cgroup)
group=${groups%/}/ddprun_systemd_$$
mkdir "$group" 2>/dev/null || skip "no control group can be made in $groups"
scratch=$(mktemp -d)
clean_up() {
  rm -rf "$scratch"
  # What a timeout has killed may not have ended yet.
  # shellcheck disable=SC2016  # the inner shell expands this
  timeout 60 sh -c 'until grep -q "populated 0" "$0"; do sleep 0.1; done' "$group/cgroup.events"
  find "$group" -depth -type d -exec rmdir {} \;
}
trap clean_up EXIT
mkdir "$scratch/out"
(
  echo "$BASHPID" >"$group/cgroup.procs" || exit
  exec timeout -s KILL 100 unshare --mount --pid --net --uts --ipc --cgroup --fork --kill-child \
    "$0" --become-systemd "$scratch" "$1"
) </dev/null >"$scratch/log" 2>&1 || true
[ ! -e "$scratch/out/cannot" ] || skip "this machine can't have a systemd of its own: $(cat "$scratch/out/cannot")"
expected='without a token: assertion no, inactive
with a token that is too short: failed, exit code 2, 0 restarts
after a crash: 1 restart
root: 0
CapPrm: 0000000000000000
CapBnd: 0000000000000000
NoNewPrivs: 1
Seccomp: 2
core: 0 0
token in the environment: 0
credentials: token
others can'"'"'t read
rank 0 of 2
rank 1 of 2
stopped: success'
diff <(echo "$expected") "$scratch/out/seen" ||
  fail "the service is not as expected (<)" "$(cat "$scratch/log" "$scratch/out/errors" "$scratch/out/daemon")"

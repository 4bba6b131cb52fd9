#!/usr/bin/env bash
# pod.sh BIN_FOLDER SCRATCH_FOLDER PROGRAM [ARGUMENT...]: runs a built program as a container of deploy/kubernetes is
# run: as RUN_AS_USER and RUN_AS_GROUP, without a capability or a way to get one, on a root that can't be written to.
# Started by root in a mount namespace of its own. The root has what the image and the kubelet would put there:
#   /opt/train_breast_cancer  the example
#   /tmp                      an empty volume of FS_GROUP
#   /checkpoints              SCRATCH_FOLDER/checkpoints, which all pods of a job share
#   /run/secrets/ddprun       SCRATCH_FOLDER/token as a secret of mode SECRET_MODE: a file of root and FS_GROUP behind
#                             two links, in a sticky directory
set -eu
bin=$1 scratch=$2
shift 2
root=$scratch/root
mkdir -p "$root" "$scratch/checkpoints"
chown ":$FS_GROUP" "$scratch/checkpoints"
chmod 2770 "$scratch/checkpoints"
mount -t tmpfs -o mode=755 tmpfs "$root"

bind() {  # FROM TO
  if [ -d "$1" ]; then mkdir -p "$root$2"; else mkdir -p "$root$(dirname "$2")" && : >"$root$2"; fi
  mount --rbind "$1" "$root$2"
}
for each in /bin /lib /lib64 /sbin; do
  if [ -L "$each" ]; then cp -P "$each" "$root"; else bind "$each" "$each"; fi
done
for each in /usr /etc /proc /sys /dev "$bin" "$bin/../lib"; do bind "$each" "$(realpath "$each")"; done
bind "$bin/train_breast_cancer" /opt/train_breast_cancer/train_breast_cancer
bind "$(dirname "$0")/../../examples/data/breast_cancer.csv" /opt/train_breast_cancer/breast_cancer.csv
bind "$scratch/checkpoints" /checkpoints
mkdir "$root/tmp"
mount -t tmpfs -o "mode=2777,gid=$FS_GROUP" tmpfs "$root/tmp"

secret=$root/run/secrets/ddprun
mkdir -p "$secret"
mount -t tmpfs -o "mode=3777,gid=$FS_GROUP" tmpfs "$secret"
install -d -m 2755 -g "$FS_GROUP" "$secret/..2024_11_23_15_25_01.123456789"
install -m "$SECRET_MODE" -g "$FS_GROUP" "$scratch/token" "$secret/..2024_11_23_15_25_01.123456789/token"
ln -s ..2024_11_23_15_25_01.123456789 "$secret/..data"
ln -s ..data/token "$secret/token"
mount -o remount,bind,ro "$secret"
mount -o remount,bind,ro "$root"

exec chroot "$root" setpriv --reuid="$RUN_AS_USER" --regid="$RUN_AS_GROUP" --groups="$FS_GROUP" \
  --no-new-privs --bounding-set=-all --inh-caps=-all env HOME=/ "$@"

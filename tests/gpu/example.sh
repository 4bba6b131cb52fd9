#!/usr/bin/env bash
# examples/train_mlp_cuda as check.sh runs it, on its real data; it lies beside the programs of the bundle.
#
#   example.sh accuracy RANKS [ARGUMENT...]   ends with 0 where it says 95 % or more
#   example.sh same_losses                    whether 1 rank with a batch of 16 has the losses of 2 with 8, up to
#                                             rounding
#
# All ranks are on one GPU: to NCCL they are hosts of their own, on the loopback.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
train=$here/train_mlp_cuda

run() { # run RANKS ARGUMENT...
  local ranks=$1
  shift
  set -- "--data=$here/../data/breast_cancer.csv" "$@"
  [ "$ranks" -gt 1 ] || exec "$train" "$@"
  exec "$here/ddprun" --standalone "--nproc-per-node=$ranks" --log-dir=/dev/null bash "$here/example.sh" worker "$@"
}

losses() { sed -n 's/.*loss \([0-9.]*\),.*/\1/p' "$1"; }

what=$1
shift
case $what in
  worker)
    export NCCL_HOSTID=rank_$RANK NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_MAX_CTAS=2
    exec "$train" --share-device "$@"
    ;;
  accuracy)
    set -o pipefail
    (run "$@") | awk '{ print; fflush() } /^accuracy on/ { found = 1; bad = $(NF - 1) < 95 } END { exit !found || bad }'
    ;;
  same_losses)
    folder=$(mktemp -d)
    trap 'rm -r "$folder"' EXIT
    (run 1 --no-tf32 --epochs=5 --batch-size=16) >"$folder/one"
    (run 2 --no-tf32 --epochs=5 --batch-size=8) >"$folder/two"
    paste <(losses "$folder/one") <(losses "$folder/two") | awk '
      { print "loss", $1, "with 1 rank,", $2, "with 2"; if (NF < 2 || ($1 - $2) ^ 2 > 4e-6) bad = 1 }
      END { exit NR != 5 || bad }'
    ;;
  *)
    echo "error: there is no '$what'" >&2
    exit 2
    ;;
esac

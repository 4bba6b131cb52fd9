#!/usr/bin/env bash
# From a fresh clone to a trained model: installs what is missing from the distribution's packages, builds, and trains a
# small network with 4 workers. Re-runnable; everything but packages stays inside this folder.
set -eu
cd "$(dirname "$0")"
./deploy/install_packages.sh
cmake --preset release >build/configure.log 2>&1 || { cat build/configure.log >&2; exit 1; }
cmake --build --preset release --target ddprun train_breast_cancer
exec build/release/bin/ddprun --standalone --nproc-per-node=4 build/release/bin/train_breast_cancer "$@"

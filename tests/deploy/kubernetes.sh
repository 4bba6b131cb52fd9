#!/usr/bin/env bash
# Checks deploy/kubernetes by kubernetes.py, where the Python of the interop tests has kubernetes-validate.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${DDP_TEST_PYTHON:-$here/../../build/interop/venv/bin/python}
if ! "$python" -c 'import kubernetes_validate' 2>/dev/null; then
  printf 'Skipped\n%s does not run or has no kubernetes_validate; ./test.sh --interop installs it\n' "$python"
  exit 77
fi
exec "$python" "$here/kubernetes.py" "$here/../../deploy/kubernetes"

#!/bin/sh
# From shards to a judged model in one call of at most ten minutes on one machine with GPUs:
#   sh engine/training/one_call.sh JUDGE OUT MINUTES PACK_MINUTES SHARDS... [-- OPTIONS OF training.train]
# PACK_MINUTES: with more than 0, so long is packed first, into a folder beside the shards given. OUT holds a complete checkpoint again after
# every minute, so a call that is cut off still brings a model back.
set -u
judge=$1 out=$2 minutes=$3 packing=$4
shift 4
export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}.:engine" PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
shards=""
while [ $# -gt 0 ] && [ "$1" != -- ]; do shards="$shards $1"; shift; done
[ $# -gt 0 ] && shift
if [ "$packing" != 0 ]; then
    more=$(mktemp -d)
    python3 -m training.pack "$more" --first "${FIRST:-5000000}" --minutes "$packing" --workers "${WORKERS:-$(nproc)}" && shards="$shards $more"
fi
status=0
# shellcheck disable=SC2086 # a list of folders
python3 -m training.train $shards "$out" --minutes "$minutes" "$@" || status=1
python3 -m training.evaluate "$out" "$judge" || status=1
exit $status

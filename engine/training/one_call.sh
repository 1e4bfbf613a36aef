#!/bin/sh
# From shards to a judged model in one call of at most ten minutes on one machine with a GPU:
#   sh engine/training/one_call.sh JUDGE OUT MINUTES PACK_MINUTES SHARDS... [-- OPTIONS OF training.train]
# PACK_MINUTES: with more than 0, so long is packed first, into a folder beside the shards given. OUT holds a complete checkpoint again after
# every minute, so a call that is cut off still brings a model back. A training that dies goes on from there: on one GPU and without graphs,
# then with small batches, in what is left of MINUTES.
set -u
judge=$1 out=$2 minutes=$3 packing=$4
shift 4
export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}.:engine" PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
shards=""
while [ $# -gt 0 ] && [ "$1" != -- ]; do shards="$shards $1"; shift; done
[ $# -gt 0 ] && shift
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ "$packing" != 0 ]; then
    python3 -m training.pack "$work/more" --first "${FIRST:-5000000}" --minutes "$packing" --workers "${WORKERS:-$(nproc)}" && shards="$shards $work/more"
fi
status=1
begin=$(date +%s)
for how in "" "--gpus 1 --no-graphs" "--gpus 1 --no-graphs --tokens 16384"; do
    left=$(awk -v m="$minutes" -v s="$(($(date +%s) - begin))" 'BEGIN { x = m - s / 60; print (x > 0 ? x : 0) }')
    # shellcheck disable=SC2086 # lists of folders and of options
    python3 -m training.train $shards "$out" --minutes "$left" --state "$work/state.safetensors" "$@" $how && { status=0; break; }
    echo "the training ended with an error after $(($(date +%s) - begin)) s"
done
echo "trained and judged on runs of our own after $(($(date +%s) - begin)) s"
# shellcheck disable=SC2086 # a list of folders
python3 -m training.evaluate "$out" "$judge" --own $shards || python3 -m training.evaluate "$out" "$judge" --own $shards --device cpu || status=1
echo "judged after $(($(date +%s) - begin)) s"
exit $status

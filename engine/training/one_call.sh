#!/bin/sh
# From shards to a judged model in one call of at most ten minutes on one GPU:
#   sh engine/training/one_call.sh SHARDS JUDGE OUT [MINUTES]
# Half a minute of trial first: it shows the speed, and whether the large batches fit the device's memory.
set -eu
shards=$1 judge=$2 out=$3 minutes=${4:-7}
export PYTHONPATH=.:engine PYTHONUNBUFFERED=1
tokens=65536
trial=$(mktemp -d)
if ! timeout 120 python3 -m training.train "$shards" "$trial" --minutes 0.5 --tokens $tokens; then
    tokens=32768
    echo "the trial with 65536 tokens a batch failed; going on with $tokens"
fi
python3 -m training.train "$shards" "$out" --minutes "$minutes" --tokens $tokens
python3 -m training.evaluate "$out" "$judge"

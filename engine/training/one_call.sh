#!/bin/sh
# From shards to a judged model in one call of at most ten minutes on one GPU:
#   sh engine/training/one_call.sh SHARDS JUDGE OUT [MINUTES [TOKENS]]
# OUT holds a complete checkpoint again after every minute, so a call that is cut off still brings a model back.
set -eu
shards=$1 judge=$2 out=$3 minutes=${4:-7} tokens=${5:-131072}
export PYTHONPATH=.:engine PYTHONUNBUFFERED=1
status=0
python3 -m training.train "$shards" "$out" --minutes "$minutes" --tokens "$tokens" || status=1
python3 -m training.evaluate "$out" "$judge" || status=1
exit $status

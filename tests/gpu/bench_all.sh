#!/bin/sh
# The GPU bars by `flide-agent bench`, the most important first, each part under its own time limit:
#   tests/gpu/bench_all.sh OUT [WORKLOADS.json]
# OUT gets a JSON file and a log for each part, and whole.log. Written for one H200 and nine minutes; SECONDS_LEFT says otherwise.
# PARTS: names of the parts to run, with spaces between. Where two GPUs are, 4B runs on one while the others run on the other one.
# A part that runs out of time leaves what it had measured in its file. Nothing else may run on the GPU.
out=$1
mkdir -p "$out"
export SECONDS_LEFT="${SECONDS_LEFT:-535}"
if [ -z "$PARTS$CUDA_VISIBLE_DEVICES" ] && [ "$(nvidia-smi -L | wc -l)" -ge 2 ]; then
  CUDA_VISIBLE_DEVICES=0 PARTS="engine-4b http-4b crowd-4b ablation-4b" "$0" "$@" &
  CUDA_VISIBLE_DEVICES=1 PARTS="engine-0.8b engine-9b http-0.8b crowd-0.8b http-9b crowd-9b start-0.8b" "$0" "$@" &
  wait
  exec python3 "$(dirname "$0")/bench_bars.py" "$out"
fi
workloads=${2:+--workloads $2}
export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD/engine:$PWD:$PWD/integrations${PYTHONPATH:+:$PYTHONPATH}"
export CUBLAS_WORKSPACE_CONFIG=:16:8 CUBLASLT_WORKSPACE_SIZE=1
bench="python3 -c 'from flide_agent.bench.command import app; app()'"
fronts="--set front_ends=4"
five=race_one,quality_one,race_all,quality_all,multirc
end=$(($(date +%s) + SECONDS_LEFT))

part() { # part NAME MOST_SECONDS ARGUMENTS...
  name=$1 most=$2
  shift 2
  case " ${PARTS:-$name} " in *" $name "*) ;; *) return ;; esac
  left=$((end - $(date +%s)))
  [ "$most" -gt "$left" ] && most=$left
  if [ "$most" -lt 15 ]; then
    echo "== $name: no time left" | tee -a "$out/whole.log"
    return
  fi
  began=$(date +%s)
  eval "timeout -k 10 $most $bench \"\$@\" --device cuda --json '$out/$name.json'" > "$out/$name.log" 2>&1
  echo "== $name: exit code $? after $(($(date +%s) - began)) s" | tee -a "$out/whole.log"
  grep -v "^$" "$out/$name.log" | tail -40 | cut -c1-220 | tee -a "$out/whole.log"
}

# Engine time over the products, steps at 4k, 12k, 24k, memory without the pool; 4B first: it is what most bars are about.
# shellcheck disable=SC2086
{
  part engine-4b 150 engine --model dummy:4b $workloads --only $five
  # Through HTTP: one client, recurring states, questions, agents; then 64 clients with the HTTP side in processes of its own.
  part http-4b 150 all --model dummy:4b $workloads --only $five,di --clients 1 --again quality_one --counts 1,64 --agents 1,32 \
    --steps 40 --memory 48GiB
  part crowd-4b 150 server --model dummy:4b $workloads --only $five,di --clients 64 --per-client 2 --memory 48GiB $fronts
  part engine-0.8b 60 engine --model dummy:0.8b $workloads --only $five
  part http-0.8b 60 server --model dummy:0.8b $workloads --only $five,di --clients 1 --memory 48GiB
  part crowd-0.8b 120 server --model dummy:0.8b $workloads --only $five,di --clients 64 --memory 48GiB $fronts
  part engine-9b 90 engine --model dummy:9b $workloads --only $five --histories ""
  part http-9b 90 server --model dummy:9b $workloads --only $five,di --clients 1 --memory 32GiB
  part crowd-9b 200 server --model dummy:9b $workloads --only race_one,race_all,di,multirc,quality_one,quality_all --clients 64 --per-client 2 --memory 32GiB $fronts
  part ablation-4b 120 engine --model dummy:4b $workloads --only race_all,quality_all --ablation --repeats 3 --histories ""
  part start-0.8b 200 start --model dummy:0.8b
}
[ -n "$PARTS" ] || python3 "$(dirname "$0")/bench_bars.py" "$out"

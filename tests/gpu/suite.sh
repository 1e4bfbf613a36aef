#!/bin/sh
# The whole GPU suite in parallel processes, then times alone: tests/gpu/suite.sh OUT [WORKLOADS.json]
out=$1
export PYTHONUNBUFFERED=1 PYTHONPATH=engine:. CUBLAS_WORKSPACE_CONFIG=:16:8 CUBLASLT_WORKSPACE_SIZE=1
pytest="python3 -m pytest -q -s -m gpu -p no:cacheprovider"
limit="timeout ${LIMIT:-1200}"
for size in 4b 9b; do
  FLIDE_GPU_MODELS=$size $limit $pytest tests/gpu/test_gpu_bits.py > "$out/bits.$size.log" 2>&1 &
done
for dtype in bfloat16 float32; do
  FLIDE_GPU_MODELS=0.8b $limit $pytest -k "$dtype" tests/gpu/test_gpu_bits.py > "$out/bits.0.8b.$dtype.log" 2>&1 &
done
$limit $pytest -n 4 tests/gpu/test_gpu_kernels.py > "$out/kernels.log" 2>&1 &
FLIDE_BARS=$out/bars.json $limit $pytest tests/gpu/test_gpu_forward.py > "$out/forward.log" 2>&1 &
PYTORCH_NO_CUDA_MEMORY_CACHING=1 $limit compute-sanitizer --tool memcheck python3 tests/gpu/sanitize.py > "$out/sanitize.log" 2>&1 &
wait
for log in "$out"/*.log; do echo "== $log"; grep -v "^ \|^$\|Warning\|warn" "$log" | tail -8; done
if [ -n "$2" ]; then python3 tests/gpu/profile_pass.py "$2" > "$out/profile.md" 2> "$out/profile.err" || tail -5 "$out/profile.err"; tail -18 "$out/profile.md"; fi

#!/usr/bin/env bash
# The proof on a real GPU, with the documented commands only: about half an hour on one data-centre GPU.
#
#     benchmarks/gpu_drill.sh [OUT] [part ...]
#
# Needs llm-perf, nsys and ncu on PATH. Parts, in this order: llama1b deepseek_ocr optimize llama8b moe deploy serve
# compare faults overhead accuracy; without names, all of them. Every command gets a time limit and a log of its own, a
# failed one does not end the drill. OUT (default: tmp/gpu-drill) gets drill.tsv (what ran, exit code, seconds), logs/, runs/
# and, at the end, drill.json and drill.md by benchmarks/gpu_drill_summary.py, which also looks for a planted token in
# every byte that was written.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=$(mkdir -p "${1:-tmp/gpu-drill}" && cd "${1:-tmp/gpu-drill}" && pwd)
shift $(($# > 0 ? 1 : 0))
wanted=${*:-llama1b deepseek_ocr optimize llama8b moe deploy serve compare faults overhead accuracy}
python=${PYTHON:-python3}
mkdir -p "$out/logs" "$out/runs"
[ -s "$out/drill.tsv" ] || printf 'step\texit\tseconds\n' >"$out/drill.tsv"
# No run may keep it: the summary looks for it.
export HF_TOKEN=hf_PlantedByTheDrillNobodyOwnsThis00

step() { # step NAME LIMIT_S COMMAND...
  local name=$1 limit=$2 begun code tenths
  shift 2
  begun=$(date +%s%N)
  timeout --kill-after=20 "$limit" "$@" >"$out/logs/$name.log" 2>&1 </dev/null
  code=$?
  # Tenths of a second; a bare host has no bc.
  tenths=$((($(date +%s%N) - begun) / 100000000))
  printf '%s\t%s\t%s\n' "$name" "$code" "$((tenths / 10)).$((tenths % 10))" | tee -a "$out/drill.tsv"
}

four="pipeline.nsys.enable=true pipeline.ncu.enable=true pipeline.energy.enable=true pipeline.memory.enable=true"
text="dataset.prompt_tokens=1024 infer.max_new_tokens=64 infer.ignore_eos=true"
pages="model=deepseek_ocr model.weights=random dataset=synthetic infer.max_new_tokens=32 infer.ignore_eos=true"
best="infer.cache=static infer.compile=reduce-overhead"

part_llama1b() { step llama1b 400 llm-perf profile model=llama3_1b $text $four artifacts.runs_dir="$out/runs/llama1b"; }
part_deepseek_ocr() {
  step deepseek_ocr 400 llm-perf profile $pages run.mode=light $four artifacts.runs_dir="$out/runs/deepseek_ocr"
}
part_optimize() {
  step optimize 660 llm-perf optimize model=llama3_1b $text --budget 10m -o "$out/runs/optimize"
}
part_llama8b() { step llama8b 400 llm-perf profile model=llama3_8b $text $four artifacts.runs_dir="$out/runs/llama8b"; }
part_moe() { step moe 400 llm-perf profile model=deepseek_v2_lite $text $four artifacts.runs_dir="$out/runs/moe"; }
part_deploy() { step deploy 560 "$python" "$here/deploy_gpu.py" --seconds 540 --out "$out/deploy_gpu.json"; }
part_serve() {
  step serve_model 120 "$python" "$here/served_model.py" "$out/served" --device cuda
  step serve 240 llm-perf bench server=transformers "server.args=[$out/served,--device,cuda:0,--dtype,bfloat16,--continuous-batching]" \
    load.concurrency=4,16 load.requests=48 load.output_tokens=64 dataset.prompt_tokens=256 capture.tool=nsys capture.duration_s=5 \
    artifacts.runs_dir="$out/runs/serve"
}
part_compare() {
  step compare_same 200 llm-perf compare --interleave 3 -o "$out/runs/compare_same" -- model=llama3_1b $text run.repeats=2 \
    base.overrides=[] candidate.overrides=[]
  step compare_best 260 llm-perf compare --interleave 3 -o "$out/runs/compare_best" -- model=llama3_1b $text run.repeats=2 \
    base.overrides=[] candidate.overrides=[${best// /,}]
}
part_faults() { step faults 400 "$python" "$here/gpu_faults.py" "$out/faults"; }
part_overhead() {
  step overhead 200 "$python" "$here/session_overhead.py" --device cuda:0 --model llama3_1b --out "$out/session_overhead.json"
  step phases 60 "$python" "$here/phase_overhead.py" --out "$out/phase_overhead.json"
  step noise 200 "$python" "$here/eager_noise.py" --steps 200 --rounds 2 --out "$out/eager_noise.json"
}
part_accuracy() { step accuracy 400 "$python" "$here/prediction_gpu.py" --out "$out/prediction_gpu.json"; }

step doctor 60 llm-perf doctor --json
for part in $wanted; do
  if declare -F "part_$part" >/dev/null; then "part_$part"; else echo "no part called $part" >&2; fi
done
"$python" "$here/gpu_drill_summary.py" "$out"

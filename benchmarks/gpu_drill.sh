#!/usr/bin/env bash
# The proof on a real GPU, with the documented commands only: half an hour on one data-centre GPU, or ten minutes.
#
#     benchmarks/gpu_drill.sh                        half an hour
#     benchmarks/gpu_drill.sh ten                    ten minutes: a model, a program, the causes, a server, faults
#     benchmarks/gpu_drill.sh [1|2|3|rest|STEP ...]
#
# Needs llm-perf, nsys and ncu on PATH. Without names: the parts 1, 2, 3 and as much of rest as half an hour holds
# (DRILL_ALL_S: 1770). A part by itself ends within DRILL_PART_S seconds (540): 1 is Llama 1B from nothing to insight, 2
# what people deploy and their own programs, 3 other models and faults, rest other models at their best and what repeats earlier figures. Every
# step has its own limit, cut to what is left of its part; one that has too little left is passed over, and a failed
# one does not end the drill. After every step DRILL_OUT (default: tmp/gpu-drill) has drill.tsv (what ran, exit code,
# seconds), logs/, runs/, drill.json and drill.md, and DRILL_PACK (default: DRILL_OUT/pack) has all of it packed, each
# file below 16 MiB, without captures and scratch files (benchmarks/gpu_drill_summary.py). At the end every byte is
# searched for a planted token.
#
# DRILL_DEVICE=cpu: the same steps with the smallest models and without ncu, to see that all of it runs.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=$(mkdir -p "${DRILL_OUT:-tmp/gpu-drill}" && cd "${DRILL_OUT:-tmp/gpu-drill}" && pwd)
pack=$(mkdir -p "${DRILL_PACK:-$out/pack}" && cd "${DRILL_PACK:-$out/pack}" && pwd)
python=${PYTHON:-python3}
part_s=${DRILL_PART_S:-540}
# A step that is ended gets 20 s to write down what it has, and packing takes a few more.
closing_s=30
mkdir -p "$out/logs" "$out/runs"
[ -s "$out/drill.tsv" ] || printf 'step\texit\tseconds\n' >"$out/drill.tsv"
# No run may keep it: the summary looks for it.
export HF_TOKEN=hf_PlantedByTheDrillNobodyOwnsThis00
begun_s=$SECONDS

step() { # step NAME NEEDED_S LIMIT_S COMMAND...
  local name=$1 needed=$2 limit=$3 left begun code tenths
  shift 3
  left=$((part_s - closing_s - (SECONDS - begun_s)))
  if [ "$left" -lt "$needed" ]; then
    printf '%s\t%s\t%s\n' "$name" "passed over: $left s left, $needed needed" 0 | tee -a "$out/drill.tsv"
    return
  fi
  begun=$(date +%s%N)
  timeout --kill-after=20 "$((limit < left ? limit : left))" "$@" >"$out/logs/$name.log" 2>&1 </dev/null
  code=$?
  # Tenths of a second; a bare host has no bc.
  tenths=$((($(date +%s%N) - begun) / 100000000))
  printf '%s\t%s\t%s\n' "$name" "$code" "$((tenths / 10)).$((tenths % 10))" | tee -a "$out/drill.tsv"
  "$python" "$here/gpu_drill_summary.py" "$out" --pack "$pack" >/dev/null
}

if [ "${DRILL_DEVICE:-cuda}" = cpu ]; then
  llama=llama_tiny moe=deepseek_v2_tiny large=llama_110m ocr=deepseek_ocr_tiny tiny=--tiny served="cpu --tiny" serve_on=cpu
  text="dataset.prompt_tokens=64 dataset.num_samples=1 infer.max_new_tokens=16 infer.ignore_eos=true"
  best="infer.cache=static infer.compile=default" long="dataset.prompt_tokens=128"
  all="pipeline.nsys.enable=true pipeline.energy.enable=true pipeline.memory.enable=true"
  # Three quick ones; with a GPU, all that need one.
  causes="hashing sorting sleep" drain_s=60
  # Threads of a small operator wait for one another on cores that other programs use.
  serve_env="+server.env.OMP_NUM_THREADS='1'"
else
  llama=llama3_1b moe=deepseek_v2_lite large=llama3_8b ocr=deepseek_ocr tiny="" causes="" drain_s=10 served=cuda serve_on=cuda:0 serve_env=""
  text="dataset.prompt_tokens=1024 infer.max_new_tokens=64 infer.ignore_eos=true"
  best="infer.cache=static infer.compile=reduce-overhead"
  long="dataset.prompt_tokens=8192 infer.cache=static infer.cuda_graph=true"
  all="pipeline.nsys.enable=true pipeline.ncu.enable=true pipeline.energy.enable=true pipeline.memory.enable=true"
fi
pages="model=$ocr model.weights=random dataset=synthetic infer.max_new_tokens=32 infer.ignore_eos=true"
clean="pipeline.static_analysis.enable=false pipeline.torch_profiler.enable=false pipeline.direct_inference.enable=true"
runs=$out/runs

do_doctor() { step doctor 10 40 llm-perf doctor --json; }
do_llama() { step llama 100 300 llm-perf profile model=$llama $text $all artifacts.runs_dir="$runs/llama"; }
do_llama_best() {
  step llama_best 100 250 llm-perf profile model=$llama $text $best run.mode=light $all artifacts.runs_dir="$runs/llama_best"
}
do_large() { step large 80 200 llm-perf profile model=$large $text run.mode=light $all artifacts.runs_dir="$runs/large"; }
do_moe() { step moe 80 260 llm-perf profile model=$moe $text run.mode=light $all artifacts.runs_dir="$runs/moe"; }
do_ocr() { step ocr 80 240 llm-perf profile $pages run.mode=light $all artifacts.runs_dir="$runs/ocr"; }
do_large_best() {
  step large_best 120 260 llm-perf profile model=$large $text $best run.mode=light $all artifacts.runs_dir="$runs/large_best"
}
do_moe_best() {
  step moe_best 120 400 llm-perf profile model=$moe $text infer.cache=static infer.compile=default run.mode=light $all \
    artifacts.runs_dir="$runs/moe_best"
}
do_ocr_best() {
  step ocr_best 120 280 llm-perf profile $pages $best run.mode=light $all artifacts.runs_dir="$runs/ocr_best"
}
# Work that keeps the GPU busy: eager steps of a small model wait for a host whose cores are shared, and two pairs of them
# could not be distinguished from twice the time (95 %: -48 to +112 %).
do_same() {
  step same 70 150 llm-perf compare --interleave 4 -o "$runs/same" -- model=$llama $text $long $clean dataset.num_samples=1 \
    run.repeats=3 base.overrides=[] candidate.overrides=[run.seed=0]
}
do_faster() {
  step faster 80 140 llm-perf compare --interleave 2 -o "$runs/faster" -- model=$llama $text $clean run.repeats=2 \
    base.overrides=[] candidate.overrides=["${best// /,}"]
}
do_optimize_llama() {
  step optimize_llama 120 190 llm-perf optimize model=$llama $text --budget 170s -o "$runs/optimize_llama"
}
# One sample: a pass of four takes 14 s, and every experiment needs several.
do_optimize_moe() {
  step optimize_moe 200 310 llm-perf optimize model=$moe $text dataset.num_samples=1 --budget 290s -o "$runs/optimize_moe"
}
do_optimize_ocr() { step optimize_ocr 110 160 llm-perf optimize $pages --budget 140s -o "$runs/optimize_ocr"; }
do_graph() { step graph 40 80 "$python" "$here/deploy_gpu.py" $tiny --only graph --seconds 75 --out "$out/deploy_graph.json"; }
do_jax() { step jax 30 60 "$python" "$here/deploy_gpu.py" $tiny --only jax --seconds 55 --out "$out/deploy_jax.json"; }
do_fp8() { step fp8 60 110 "$python" "$here/deploy_gpu.py" $tiny --only fp8 --seconds 105 --out "$out/deploy_fp8.json"; }
do_loop() { step loop 60 260 "$python" "$here/deploy_gpu.py" $tiny --only loop --seconds 250 --out "$out/deploy_loop.json"; }
do_serve() {
  step serve_model 60 60 "$python" "$here/served_model.py" "$out/served" --device $served
  step serve 60 150 llm-perf bench server=transformers "server.args=[$out/served,--device,$serve_on,--dtype,bfloat16,--continuous-batching]" \
    $serve_env load.concurrency=4,16 load.requests=48 load.duration_s=15 load.drain_s=10 load.output_tokens=32 dataset.prompt_tokens=256 \
    capture.tool=nsys capture.duration_s=5 artifacts.runs_dir="$runs/serve"
  rm -rf "$out/served"
}
# A program without marks, and programs with one planted cause each.
do_generate() {
  step generate 60 150 llm-perf run --nsys artifacts.runs_dir="$runs/generate" -- "$python" "$here/../examples/generate.py" $tiny
}
do_causes() { step causes 60 500 "$python" "$here/causes/run.py" --device "${DRILL_DEVICE:-cuda}" $causes --budget 470 --json "$out/causes.json" --keep "$runs/causes"; }
# One level on each side of the knee, explained request by request; the same levels answer `plan`.
do_slow() {
  step slow_model 60 90 "$python" "$here/served_model.py" "$out/slow_model" --device $served
  step slow 60 150 llm-perf bench server=transformers \
    "server.args=[$out/slow_model,--device,$serve_on,--dtype,bfloat16,--continuous-batching]" $serve_env load.concurrency=1,4,16 \
    load.duration_s=12 load.drain_s=$drain_s load.output_tokens=32 dataset.prompt_tokens=256 capture.requests=slowest \
    artifacts.runs_dir="$runs/slow"
  step calibrate 5 30 llm-perf plan --calibrate-from "$runs/slow" --ttft-ms 2000 --tpot-ms 200 --rate 2/s --json
  rm -rf "$out/slow_model"
}
# A start takes 35 to 60 s: the start as it is, four options once each, and two rounds of the best against it.
do_tune() {
  step tune_model 60 90 "$python" "$here/served_model.py" "$out/tune_model" --device $served
  step tune 300 505 llm-perf optimize server=transformers "server.args=[$out/tune_model,--device,$serve_on,--dtype,bfloat16]" \
    $serve_env load.concurrency=16 load.duration_s=6 load.output_tokens=32 dataset.prompt_tokens=256 --budget 480s --max-experiments 9 \
    -o "$runs/tune"
  rm -rf "$out/tune_model"
}
do_serve_faster() {
  step serve_faster 120 220 "$python" "$here/served_remedies.py" --device "$serve_on" $tiny --out "$out/served_gpu.json"
}
# Captures of what people deploy, small enough to be kept as test data.
do_batched() {
  step batched 40 100 llm-perf profile model=$llama dataset.prompt_tokens=256 dataset.num_samples=8 infer.batch=8 \
    infer.max_new_tokens=16 infer.ignore_eos=true run.repeats=1 pipeline.static_analysis.enable=false \
    pipeline.nsys.enable=true artifacts.runs_dir="$runs/batched"
}
do_captures() { step captures 5 120 "$python" "$here/keep_captures.py" "$runs" "$pack"; }
do_overhead() {
  step overhead 40 80 "$python" "$here/session_overhead.py" --device "${serve_on}" --models "$llama" --out "$out/session_overhead.json"
  step phases 5 30 "$python" "$here/phase_overhead.py" --out "$out/phase_overhead.json"
}
do_stages() {
  step stages 60 160 "$python" "$here/energy_memory_gpu.py" $tiny --only overhead --seconds 150 --out "$out/stage_overhead.json"
}
do_joules() {
  step joules 80 150 "$python" "$here/energy_memory_gpu.py" $tiny --only energy --seconds 145 --out "$out/energy.json"
}
do_peaks() { step peaks 40 80 "$python" "$here/energy_memory_gpu.py" $tiny --only memory --seconds 75 --out "$out/memory.json"; }
do_faults() { step faults 60 200 "$python" "$here/gpu_faults.py" $tiny --seconds 190 "$out/faults"; }
do_noise() { step noise 60 120 "$python" "$here/eager_noise.py" --steps 200 --rounds 2 --out "$out/eager_noise.json"; }
do_accuracy() { step accuracy 100 400 "$python" "$here/prediction_gpu.py" $tiny --out "$out/prediction_gpu.json"; }

part_1="doctor llama generate overhead jax fp8"
part_2="llama_best slow serve batched captures"
part_3="ocr causes faults"
part_ten="doctor llama generate causes slow faults"
part_rest="tune moe same faster serve_faster stages ocr_best large_best moe_best large optimize_llama optimize_ocr optimize_moe graph loop joules peaks noise accuracy"

for name in "${@:-all}"; do
  case $name in
    1 | 2 | 3 | ten | rest) part="part_$name" && wanted="${!part}" ;;
    all) wanted="$part_1 $part_2 $part_3 $part_rest" part_s=${DRILL_ALL_S:-1770} ;;
    *) wanted=$name ;;
  esac
  begun_s=$SECONDS
  for one in $wanted; do
    if declare -F "do_$one" >/dev/null; then "do_$one"; else echo "no step called $one" >&2; fi
  done
done
"$python" "$here/gpu_drill_summary.py" "$out" --pack "$pack" --search

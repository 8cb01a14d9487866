#!/usr/bin/env bash
# Profile chosen kernels of any program with ncu, one after the other, and export what was measured.
#
# The same as ncu-profile-kernels.py where there is no Python: needs bash, coreutils and ncu, neither yq nor jq.
# It reads the YAML that extract-top-kernels.py writes: under `kernels:` one key a line, values plain or quoted on one line.
# The default sections are those of the preset ncu.default.
# Exit codes: 0 every kernel profiled, 1 a kernel was never seen or ncu failed, 2 bad usage or YAML.
set -u
LC_ALL=C
export LC_ALL

PROG=ncu-profile-kernels
DEFAULT_SECTIONS="SpeedOfLight MemoryWorkloadAnalysis Occupancy SchedulerStats"

names=() regexes=() folders=() states=()

die_usage() {
  printf '%s: %s\n' "$PROG" "$1" >&2
  exit 2
}

whole() { # flag text least
  if ! [[ $2 =~ ^[0-9]+$ ]] || (($2 < $3)); then
    die_usage "$1: a whole number from $3 on is needed (got '$2')"
  fi
}

parse_args() {
  config='' regex='' have_config=0 have_regex=0
  output_dir=ncu-kernels topk='' skip=200 count=1 force=0 extra=()
  local seen=0 arg
  for arg in "$@"; do [[ $arg == -- ]] && seen=1 && break; done
  if ((!seen)); then
    for arg in "$@"; do
      if [[ $arg == -h || $arg == --help ]]; then
        printf 'usage: %s (--kernel-config YAML | --kernel-regex RE) [--output-dir DIR] [--topk N]\n' "$PROG"
        printf '       [--extra-sections S...] [--num-kernel-call-skip N] [--num-kernel-call-profile N]\n'
        printf '       [--force-overwrite] -- command...\n\n'
        printf 'The defaults mirror the preset ncu.default of the runners (conf/profiling/ncu): sections\n'
        printf 'SpeedOfLight, MemoryWorkloadAnalysis, Occupancy and SchedulerStats, and no --metrics. Presets are not read '
        printf 'here;\nwhat ncu.high, ncu.h200 and ncu.rtx3090, ncu.rtx3090.compute, ncu.rtx3090.memory add goes to '
        printf -- '--extra-sections.\n'
        exit 0
      fi
    done
    die_usage "no command: put it behind --"
  fi
  while [[ $1 != -- ]]; do
    local flag=$1
    shift
    if [[ $flag == --*=* ]]; then
      set -- "${flag#*=}" "$@"
      flag=${flag%%=*}
    fi
    case $flag in
      --force-overwrite) force=1 && continue ;;
      --extra-sections)
        [[ $1 == -* ]] && die_usage "argument --extra-sections: expected at least one argument"
        while [[ $1 != -* ]]; do extra+=("$1") && shift; done
        continue
        ;;
      --kernel-config | --kernel-regex | --output-dir | --topk | --num-kernel-call-skip | --num-kernel-call-profile) ;;
      *) die_usage "unrecognized arguments: $flag" ;;
    esac
    [[ $1 == -- ]] && die_usage "argument $flag: expected one argument"
    case $flag in
      --kernel-config) config=$1 have_config=1 ;;
      --kernel-regex) regex=$1 have_regex=1 ;;
      --output-dir) output_dir=$1 ;;
      --topk) topk=$1 ;;
      --num-kernel-call-skip) skip=$1 ;;
      --num-kernel-call-profile) count=$1 ;;
    esac
    shift
  done
  shift
  (($# > 0)) || die_usage "no command behind --"
  command=("$@")
  ((have_config + have_regex == 1)) || die_usage "give one of --kernel-config and --kernel-regex"
  whole --num-kernel-call-skip "$skip" 0
  whole --num-kernel-call-profile "$count" 1
  [[ -n $topk ]] && whole --topk "$topk" 1
  skip=$((10#$skip)) count=$((10#$count))
  sections=()
  local section known
  for section in $DEFAULT_SECTIONS ${extra[@]+"${extra[@]}"}; do
    known=0
    for arg in ${sections[@]+"${sections[@]}"}; do [[ $arg == "$section" ]] && known=1; done
    ((known)) || sections+=("$section")
  done
  if ((!force)) && compgen -G "$output_dir/kernel_*" >/dev/null; then
    die_usage "$output_dir: holds earlier results; pass --force-overwrite or another --output-dir"
  fi
}

unquote() { # a YAML scalar on one line; the result is in REPLY
  local text=$1
  case $text in
    \'*)
      [[ $text =~ ^\'(([^\']|\'\')*)\'[[:space:]]*(#.*)?$ ]] || return 1
      REPLY=${BASH_REMATCH[1]//"''"/"'"}
      ;;
    \"*)
      [[ $text =~ ^\"(([^\"\\]|\\[\"\\/])*)\"[[:space:]]*(#.*)?$ ]] || return 1
      REPLY=${BASH_REMATCH[1]//'\"'/'"'}
      REPLY=${REPLY//'\/'//}
      REPLY=${REPLY//'\\'/'\'}
      ;;
    [\|\>\&\*\!\[\{%@\`]*) return 1 ;;
    *)
      [[ $text == *': '* || $text == *' #'* ]] && return 1
      REPLY=${text%"${text##*[![:space:]]}"}
      ;;
  esac
}

read_config() {
  [[ -r $config && -f $config ]] || die_usage "$config: could not be read"
  local line number=0 inside=0 name='' pattern='' open=0
  local entry='^[[:space:]]*-[[:space:]]+(name|regex|description):[[:space:]]+(.*)$'
  local field='^[[:space:]]+(name|regex|description):[[:space:]]+(.*)$'
  while IFS= read -r line || [[ -n $line ]]; do
    number=$((number + 1))
    [[ $line =~ ^[[:space:]]*(#.*)?$ || $line == --- ]] && continue
    if [[ $line =~ ^kernels:[[:space:]]*$ ]]; then
      inside=1
      continue
    fi
    ((inside)) || die_usage "$config: line $number: not of the form extract-top-kernels.py writes"
    if [[ $line =~ $entry ]]; then
      ((open)) && add_kernel "$name" "$pattern"
      open=1 name='' pattern=''
    elif ! ((open)) || ! [[ $line =~ $field ]]; then
      die_usage "$config: line $number: not of the form extract-top-kernels.py writes"
    fi
    local key=${BASH_REMATCH[1]} value=${BASH_REMATCH[2]}
    unquote "$value" || die_usage "$config: line $number: not of the form extract-top-kernels.py writes"
    case $key in
      name) name=$REPLY ;;
      regex) pattern=$REPLY ;;
    esac
  done <"$config"
  ((open)) && add_kernel "$name" "$pattern"
  ((${#names[@]} > 0)) || die_usage "$config: no list \`kernels\` with an entry in it"
}

add_kernel() {
  [[ -n $1 && -n $2 ]] || die_usage "$config: every kernel needs a name and a regex"
  names+=("$1")
  regexes+=("$2")
}

load_kernels() {
  if ((have_regex)); then
    names=("$regex") regexes=("$regex")
  else
    read_config
  fi
  if [[ -n $topk ]] && ((${#names[@]} > 10#$topk)); then
    names=("${names[@]:0:10#$topk}") regexes=("${regexes[@]:0:10#$topk}")
  fi
  local i sum
  for i in "${!names[@]}"; do
    sum=$(printf '%s' "${names[i]}" | md5sum)
    printf -v "folders[$i]" 'kernel_%04d_%s' $((i + 1)) "${sum%% *}"
    states[i]=pending
  done
}

escape() { # any bytes as a YAML double-quoted scalar in plain ASCII; the result is in REPLY
  local bytes byte out='' i=0 n more code least c j
  read -r -d '' -a bytes < <(printf '%s' "$1" | od -An -v -tu1)
  n=${#bytes[@]}
  while ((i < n)); do
    byte=${bytes[i]}
    if ((byte >= 128)); then
      more=0 code=0 least=0
      if ((byte >= 0xC2 && byte <= 0xDF)); then more=1 code=$((byte & 31)) least=128
      elif ((byte >= 0xE0 && byte <= 0xEF)); then more=2 code=$((byte & 15)) least=2048
      elif ((byte >= 0xF0 && byte <= 0xF4)); then more=3 code=$((byte & 7)) least=65536; fi
      ((more > 0 && i + more < n)) || ((more = (more > 0 && i + more < n) ? more : 0))
      for ((j = 1; j <= more; j++)); do
        c=${bytes[i + j]}
        if ((c < 128 || c > 191)); then more=0; else code=$((code << 6 | (c & 63))); fi
      done
      if ((more == 0 || code < least || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF))); then
        printf -v c '\\x%02x' "$byte"
        more=0
      elif ((code < 0x10000)); then
        printf -v c '\\u%04x' "$code"
      else
        printf -v c '\\U%08x' "$code"
      fi
      out+=$c
      i=$((i + more + 1))
      continue
    fi
    if ((byte == 34)); then out+='\"'
    elif ((byte == 92)); then out+='\\'
    elif ((byte < 32 || byte == 127)); then
      printf -v c '\\x%02x' "$byte"
      out+=$c
    else
      printf -v c '\\%03o' "$byte"
      printf -v c "$c"
      out+=$c
    fi
    i=$((i + 1))
  done
  REPLY="\"$out\""
}

item() { # indent-and-key value
  escape "$2"
  printf '%s%s\n' "$1" "$REPLY"
}

write_record() {
  local i value
  {
    item 'time: ' "$(date -u +%Y-%m-%dT%H:%M:%SZ)"
    item 'ncu_version: ' "$version"
    printf 'sections:\n'
    for value in "${sections[@]}"; do item '  - ' "$value"; done
    printf 'launch_skip: %s\nlaunch_count: %s\ncommand:\n' "$skip" "$count"
    for value in "${command[@]}"; do item '  - ' "$value"; done
    printf 'kernels:\n'
    for i in "${!names[@]}"; do
      printf '  - rank: %s\n' $((i + 1))
      item '    name: ' "${names[i]}"
      item '    regex: ' "${regexes[i]}"
      item '    dir: ' "${folders[i]}"
      item '    status: ' "${states[i]}"
    done
  } >"$output_dir/command.yaml"
}

profile() { # index; sets its state
  local folder=$output_dir/${folders[$1]} argv=() section code=0 bad=0
  mkdir -p "$folder"
  rm -f "$folder/ncu.ncu-rep"
  argv=(ncu --target-processes all --kernel-name-base demangled --kernel-name "regex:${regexes[$1]}"
    --launch-skip "$skip" --launch-count "$count")
  for section in "${sections[@]}"; do argv+=(--section "$section"); done
  argv+=(--export "$folder/ncu" --force-overwrite "${command[@]}")
  "${argv[@]}" </dev/null >"$folder/ncu.log" 2>&1 || code=$?
  if [[ ! -e $folder/ncu.ncu-rep ]]; then
    states[$1]=failed
    ((code == 0)) && states[$1]=missing
    return
  fi
  argv=(ncu --import "$folder/ncu.ncu-rep" --page details --csv)
  "${argv[@]}" </dev/null >"$folder/ncu.details.csv" 2>&1 || bad=1
  for section in "${sections[@]}"; do
    "${argv[@]}" --section "$section" </dev/null >"$folder/ncu.section_$section.csv" 2>&1 || bad=1
  done
  states[$1]=profiled
  ((bad)) && states[$1]=failed
  return 0
}

parse_args "$@"
load_kernels
if ! command -v ncu >/dev/null; then
  printf '%s: ncu was not found; install Nsight Compute and put ncu on PATH\n' "$PROG" >&2
  exit 1
fi
mkdir -p "$output_dir"
version=unknown
[[ $(ncu --version </dev/null 2>&1) =~ Version\ ([0-9.]+) ]] && version=${BASH_REMATCH[1]}
write_record
for i in "${!names[@]}"; do
  profile "$i"
  printf '%s: kernel %s of %s: %s: %s\n' "$PROG" $((i + 1)) "${#names[@]}" "${states[i]}" "${names[i]}"
  write_record
done
status=0 missing=0
for i in "${!names[@]}"; do
  [[ ${states[i]} == profiled ]] && continue
  status=1
  [[ ${states[i]} == missing ]] && missing=1
  printf '%s: %s: %s\n' "$PROG" "${states[i]}" "${names[i]}" >&2
done
((missing)) && printf '%s: a missing kernel has at most %s matching launches, or its regex does not fit\n' "$PROG" "$skip" >&2
exit $status

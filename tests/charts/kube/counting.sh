# Checks that print one line each, for the scripts beside it; they set `work`, a folder.
pass=0 fail=0

ok() {  # ok WHAT COMMAND...
  local what=$1; shift
  if "$@" >"$work/last" 2>&1; then
    pass=$((pass + 1))
    echo "ok    $what"
  else
    fail=$((fail + 1))
    echo "FAIL  $what"
    cat "$work/last"
  fi
}

no() {  # no WHAT SENTENCE COMMAND...: refused, with that in the message
  local what=$1 sentence=$2; shift 2
  if "$@" >"$work/last" 2>&1; then fail=$((fail + 1)); echo "FAIL  accepted: $what"
  elif grep -q "$sentence" "$work/last"; then pass=$((pass + 1)); echo "ok    refused: $what"
  else fail=$((fail + 1)); echo "FAIL  refused for another reason: $what"; cat "$work/last"; fi
}

counted() { echo "$pass passed, $fail failed"; [ "$fail" = 0 ]; }


# Wait for a child of this shell, however often a signal interrupts that, and return its exit code.
await() {
  local code again
  while wait "$1"; code=$?; is_alive "$1"; do :; done
  wait "$1" 2>/dev/null
  again=$?
  (( again == 127 )) || code=$again
  return "$code"
}

is_alive() { [[ -n $1 ]] && kill -0 "$1" 2>/dev/null; }

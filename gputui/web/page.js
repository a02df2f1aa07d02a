// Keys go to the terminal from the first on, without a click.
function focus() {
  const keys = document.querySelector("#terminal textarea");
  if (keys) keys.focus();
  return keys;
}
document.addEventListener("DOMContentLoaded", () => {
  const terminal = document.getElementById("terminal");
  new MutationObserver((_, observer) => focus() && observer.disconnect()).observe(terminal, { childList: true, subtree: true });
});
window.addEventListener("focus", focus);

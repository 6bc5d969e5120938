// Asks for the rest of the page when what came with it is on the screen and the server's run has ended: asked for in the middle
// of a run, its parts could come before the places that they are drawn into, and the page would go blank.
// data: { turn } – grows with each press that redrew only a part; null: nothing is owed. Trigger: `rest`.
const running = () => document.querySelector('[data-testid="stApp"]')?.dataset.testScriptState === "running";

export default function ({ data, parentElement, setTriggerValue }) {
  if (data.turn === null || parentElement.turn === data.turn) return;
  parentElement.turn = data.turn;
  const ask = () => {
    if (parentElement.turn !== data.turn) return; // a later press asks for itself
    if (running()) window.setTimeout(ask, 15);
    else setTriggerValue("rest", data.turn);
  };
  window.requestAnimationFrame(() => window.setTimeout(ask, 0));
}

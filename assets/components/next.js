// Asks for the rest of the page when what came with it is on the screen.
// data: { turn } – grows with each press that redrew only a part; null: nothing is owed. Trigger: `rest`.
export default function ({ data, parentElement, setTriggerValue }) {
  if (data.turn === null || parentElement.turn === data.turn) return;
  parentElement.turn = data.turn;
  window.requestAnimationFrame(() => window.setTimeout(() => setTriggerValue("rest", data.turn), 0));
}

// Asks for the rest of the page when the stage has been drawn, so that the stage never waits for the pictures below it.
// data: { turn } – a number that grows with each press that redrew the stage alone; null: nothing is owed.
export default function ({ data, parentElement, setTriggerValue }) {
  if (data.turn === null || parentElement.turn === data.turn) return;
  parentElement.turn = data.turn;
  // After the next frame: by then the figures that came with this message are on the screen.
  window.requestAnimationFrame(() => window.setTimeout(() => setTriggerValue("next", data.turn), 0));
}

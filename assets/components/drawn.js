// Stands at the end of what is redrawn first, and tells the page that it has come.
// data: { turn } – grows with each press that redrew this part alone; null: nothing follows.
export default function ({ data, parentElement }) {
  if (data.turn === null || parentElement.turn === data.turn) return;
  parentElement.turn = data.turn;
  window.stepwiseDrawn = data.turn; // for a listener that comes later
  window.dispatchEvent(new Event("stepwise:drawn"));
}

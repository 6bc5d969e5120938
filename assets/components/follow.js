// Stands in the part that follows: asks the server for it when the part before it is drawn, and then for all the rest.
// data: { turn } – as in drawn.js. Triggers: `due`, which reruns this part, and `rest`.
export default function ({ data, parentElement, setTriggerValue }) {
  window.removeEventListener("stepwise:drawn", parentElement.asks);
  parentElement.asks = () => {
    if (parentElement.asked === window.stepwiseDrawn) return;
    parentElement.asked = window.stepwiseDrawn;
    setTriggerValue("due", true);
  };
  window.addEventListener("stepwise:drawn", parentElement.asks);
  parentElement.asks();
  if (data.turn !== null && parentElement.turn !== data.turn) {
    parentElement.turn = data.turn;
    window.requestAnimationFrame(() => window.setTimeout(() => setTriggerValue("rest", true), 0)); // when this is on the screen
  }
  return () => window.removeEventListener("stepwise:drawn", parentElement.asks);
}

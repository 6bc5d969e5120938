// Which lessons are done lives in this browser and nowhere else: localStorage "stepwise.done", a list of keys.
// data: { known, done, turn, mark } – the keys there are; those the server takes for done; where `turn` has grown, `mark` =
// { key, done } is written. State value `done`: the keys found, in the order of `known`. Without storage nothing is kept.
const NAME = "stepwise.done";

function read(known) {
  try {
    const kept = JSON.parse(window.localStorage.getItem(NAME) ?? "[]");
    return Array.isArray(kept) ? known.filter((key) => kept.includes(key)) : [];
  } catch {
    return [];
  }
}

export default function ({ data, parentElement, setStateValue }) {
  const before = parentElement.turn ?? data.turn; // what was marked on a page before this one is written already
  parentElement.turn = data.turn;
  let done = read(data.known);
  if (data.turn !== before && data.mark) {
    done = data.known.filter((key) => (key === data.mark.key ? data.mark.done : done.includes(key)));
    try {
      window.localStorage.setItem(NAME, JSON.stringify(done));
    } catch {} // private browsing: for this visit only
  }
  if (JSON.stringify(done) !== JSON.stringify(data.done)) setStateValue("done", done);
}

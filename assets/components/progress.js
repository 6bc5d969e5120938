// Which lessons are done lives in this browser and nowhere else: localStorage "stepwise.done", a list of keys.
// data: { known, done, mark } – the keys there are; those the server takes for done; what was marked last: { id, key, done } or
// null, written once, also where this tab had not drawn us before. State value `done`: the keys found, in the order of `known`.
// Without storage a mark lasts for this visit.
const NAME = "stepwise.done", WRITTEN = "stepwise.done.mark";

function read(known) {
  try {
    const kept = JSON.parse(window.localStorage.getItem(NAME) ?? "[]");
    return Array.isArray(kept) ? known.filter((key) => kept.includes(key)) : [];
  } catch {
    return [];
  }
}

export default function ({ data, setStateValue }) {
  let done = read(data.known);
  const { mark } = data;
  try {
    if (mark && window.sessionStorage.getItem(WRITTEN) !== mark.id) {
      done = data.known.filter((key) => (key === mark.key ? mark.done : done.includes(key)));
      window.localStorage.setItem(NAME, JSON.stringify(done));
      window.sessionStorage.setItem(WRITTEN, mark.id);
    }
  } catch {
    done = data.done; // storage is closed to us
  }
  if (JSON.stringify(done) !== JSON.stringify(data.done)) setStateValue("done", done);
}

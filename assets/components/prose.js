// A text whose words of the field can be opened where they stand.
// data: { runs, words } – runs: [text, strong, word], word: index into words or null; words: { name, is, isnt, href }.
function element(tag, text, more = {}) {
  return Object.assign(document.createElement(tag), { textContent: text }, more);
}

// Below the word, within the window.
function place(card, word) {
  const at = word.getBoundingClientRect();
  const room = document.documentElement.clientWidth - card.offsetWidth - 8;
  card.style.left = `${Math.max(8, Math.min(at.left, room))}px`;
  const below = at.bottom + 6;
  card.style.top = `${below + card.offsetHeight < window.innerHeight ? below : Math.max(8, at.top - card.offsetHeight - 6)}px`;
}

function write(root, data) {
  const text = document.createElement("p");
  for (const [words, strong, index] of data.runs) {
    const into = strong ? text.appendChild(document.createElement("strong")) : text;
    if (index === null) {
      into.append(words);
      continue;
    }
    const { name, is, isnt, href } = data.words[index];
    const button = element("button", words, { type: "button" });
    const card = element("div", "", { popover: "auto", className: "card" });
    button.popoverTargetElement = card;
    card.append(element("b", name), element("span", `: ${is} `), element("em", isnt));
    if (href) card.append(" ", element("a", "In the glossary", { href, target: "_self" }));
    card.addEventListener("toggle", ({ newState }) => newState === "open" && place(card, button));
    into.append(button);
    button.after(card); // beside its word, so that the keyboard comes to its link next
  }
  root.replaceChildren(text);
}

export default function ({ data, parentElement }) {
  const root = parentElement.querySelector(".prose");
  const told = JSON.stringify(data);
  if (root.told !== told) write(root, data); // an open word stays open while the page is redrawn
  root.told = told;
  const close = () => root.querySelectorAll(":popover-open").forEach((card) => card.hidePopover());
  document.addEventListener("scroll", close, { capture: true, passive: true });
  return () => document.removeEventListener("scroll", close, { capture: true });
}

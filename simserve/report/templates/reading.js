// Keeps the decision in sight once the head has left the screen, and lets tables be sorted and copied.
(() => {
  const bar = document.querySelector(".contents");
  if (bar) {
    const leaves = new IntersectionObserver(([head]) => bar.classList.toggle("stuck", !head.isIntersecting));
    leaves.observe(document.querySelector("header"));
  }

  const FACTORS = { "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "%": 0.01, "k": 1e3, "M": 1e6 };
  // The number a cell begins with, in one unit: "1.24 s", "$8.00", "95.2%", ">16", "8.1–9.0"; NaN without one.
  const value = (text) => {
    const found = /^[~<>≥≤+$ ]*(-?[\d,]*\.?\d+)\s*(ms|min|s|h|%|k|M)?/.exec(text.replace(/[\u00a0\u2060]/g, (each) => (each === "\u00a0" ? " " : "")).replace("−", "-"));
    return found ? parseFloat(found[1].replaceAll(",", "")) * (FACTORS[found[2]] ?? 1) : NaN;
  };
  const words = (cell) => cell.innerText.replace(/\u2060/g, "").replace(/[\s\u00a0]+/g, " ").trim();

  const sort = (head, place, body) => {
    const falls = head.getAttribute("aria-sort") === "ascending";
    const rows = [...body.rows].map((row) => [row, words(row.cells[place] ?? row), value(words(row.cells[place] ?? row))]);
    const numbers = rows.filter(([, , number]) => !isNaN(number)).length * 2 > rows.length;
    rows.sort(([, a, x], [, b, y]) => {
      if (numbers && (isNaN(x) || isNaN(y))) return isNaN(x) - isNaN(y); // what has no number stays last
      return (numbers ? x - y : a.localeCompare(b)) * (falls ? -1 : 1);
    });
    for (const other of head.parentElement.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", falls ? "descending" : "ascending");
    body.append(...rows.map(([row]) => row));
  };

  const copy = async (table, button) => {
    const text = [...table.rows].map((row) => [...row.cells].map(words).join("\t")).join("\n");
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const place = document.body.appendChild(Object.assign(document.createElement("textarea"), { value: text }));
      place.select();
      document.execCommand("copy");
      place.remove();
    }
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  };

  for (const frame of document.querySelectorAll(".scroll")) {
    const table = frame.querySelector("table");
    const [head, body] = [table.tHead.rows[0], table.tBodies[0]];
    const names = [...body.rows].map((row) => words(row.cells[0]));
    const stand = names.length > 2 && new Set(names).size === names.length && !names.includes("");
    if (head && stand)
      [...head.cells].forEach((cell, place) => {
        if (cell.tagName !== "TH") return;
        const button = Object.assign(document.createElement("button"), { type: "button", textContent: cell.textContent, title: "Sort" });
        button.addEventListener("click", () => sort(cell, place, body));
        cell.replaceChildren(button);
      });
    const tools = Object.assign(document.createElement("div"), { className: "tools" });
    const hint = Object.assign(document.createElement("span"), { textContent: "Scrolls sideways" });
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: "Copy", title: "Copy the table for a spreadsheet" });
    button.addEventListener("click", () => copy(table, button));
    tools.append(hint, button);
    frame.before(tools);
    new ResizeObserver(() => (hint.hidden = frame.scrollWidth <= frame.clientWidth)).observe(frame);
  }
})();

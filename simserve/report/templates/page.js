// Unpacks plotly.js and the charts, draws the page's charts, and keeps their width and colors those of the page: screen, dark, paper.
(async () => {
  const places = [...document.querySelectorAll(".chart")];
  const config = { displayModeBar: false, scrollZoom: false, doubleClick: "reset" };

  const say = (sentence) => {
    for (const place of places) {
      place.removeAttribute("role");
      place.className = "empty";
      place.textContent = sentence;
    }
    document.documentElement.dataset.drawn = 0;
  };

  const unpacked = (id) => {
    const packed = Uint8Array.from(atob(document.getElementById(id).textContent), (byte) => byte.charCodeAt(0));
    return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip")));
  };

  // "$c1" in a figure is the page's color --c1; "$c1/0.2" is the same color, 20% opaque.
  const TOKEN = /^\$[a-z]\w*(\/[\d.]+)?$/;
  const color = (token, style) => {
    const [name, opacity] = token.slice(1).split("/");
    const hex = style.getPropertyValue("--" + name).trim();
    if (!opacity) return hex;
    const channels = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    return `rgba(${channels.join(",")},${opacity})`;
  };
  const resolve = (value, style) => {
    if (typeof value === "string") return TOKEN.test(value) ? color(value, style) : value;
    if (Array.isArray(value)) return typeof value[0] === "number" ? value : value.map((item) => resolve(item, style));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, resolve(item, style)]));
  };

  // A phone has room for every other label of an axis.
  const thin = (axis) => {
    if (axis.ticktext?.length > 4) axis.ticktext = axis.ticktext.map((label, at) => (at % 2 ? "" : label));
  };

  const draw = (place) => {
    const style = getComputedStyle(document.documentElement);
    const { data, layout } = resolve(charts[place.id], style);
    layout.font.family = style.getPropertyValue("--text").trim();
    layout.datarevision = Date.now();
    layout.width = place.clientWidth;
    place.style.height = layout.height + "px"; // or each resize would add the padding above it
    if (layout.width < 380) thin(layout.xaxis);
    Plotly.react(place, data, layout, config);
    // Where a browser prints without redrawing, print styles scale the drawing to the paper.
    for (const svg of place.querySelectorAll(".main-svg")) {
      svg.setAttribute("viewBox", `0 0 ${layout.width} ${layout.height}`);
      svg.setAttribute("preserveAspectRatio", "xMinYMin meet");
    }
  };
  const drawAll = () => places.forEach(draw);

  if (!("DecompressionStream" in window))
    return say("This browser is too old for the charts: it has no DecompressionStream. Chrome 80, Firefox 113 and Safari 16.4 have.");
  let charts;
  try {
    charts = await unpacked("charts").json();
    // The content security policy names plotly's hash, so an element with any other text would not run.
    const script = document.createElement("script");
    script.textContent = await unpacked("plotly").text();
    document.head.append(script);
  } catch (error) {
    return say(`The charts could not be unpacked (${error}). The file may be damaged: write the page again.`);
  }
  drawAll();
  document.documentElement.dataset.drawn = places.length;
  const fit = new ResizeObserver((seen) =>
    seen.forEach(({ target }) => target.clientWidth !== target.layout.width && draw(target)),
  );
  places.forEach((place) => fit.observe(place));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  matchMedia("print").addEventListener("change", drawAll); // the page then has the width of the paper
})();

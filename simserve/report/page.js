// Draws the page's charts and keeps their colors those of the page: light, dark, and on paper.
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const config = { displayModeBar: false, scrollZoom: false, doubleClick: "reset" };

  // "$c1" in a figure is the page's color --c1; "$c1/0.2" is the same color, 20 % opaque.
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

  const draw = () => {
    const style = getComputedStyle(document.documentElement);
    for (const [id, figure] of Object.entries(charts)) {
      const place = document.getElementById(id);
      const { data, layout } = resolve(figure, style);
      layout.font.family = style.getPropertyValue("--text").trim();
      layout.datarevision = Date.now();
      place.style.height = layout.height + "px"; // or each resize would add the padding above it
      if (place.clientWidth < 380) thin(layout.xaxis);
      Plotly.react(place, data, layout, config);
    }
    document.documentElement.dataset.drawn = Object.keys(charts).length;
  };

  draw();
  const fit = new ResizeObserver((seen) => seen.forEach(({ target }) => Plotly.Plots.resize(target)));
  Object.keys(charts).forEach((id) => fit.observe(document.getElementById(id)));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  matchMedia("print").addEventListener("change", draw);
})();

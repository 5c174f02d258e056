"use strict";
{
  const { figures, views } = JSON.parse(document.getElementById("figures").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)");
  const timeline = document.getElementById("timeline");
  const frontier = document.getElementById("frontier");
  const narrow = () => timeline.clientWidth < 600;
  let shown = views[narrow() ? "narrow" : "wide"];

  function draw() {
    for (const [id, schemes] of Object.entries(figures)) {
      const { data, layout } = structuredClone(schemes[dark.matches ? "dark" : "light"]);
      if (id === "timeline") {
        layout.xaxis.range = shown.slice();
        layout.xaxis2.range = shown.slice();
        if (touch.matches) layout.dragmode = false; // a finger scrolls the page; the buttons move the timeline
      }
      Plotly.react(id, data, layout, { displayModeBar: false, responsive: true }).then(id === "timeline" ? thin : place);
    }
  }

  /* Batch numbers only where there is room for them. */
  function thin() {
    const begins = timeline.data.findIndex((trace) => trace.meta === "batches");
    const { x, y } = timeline.data[begins];
    const perUnit = timeline._fullLayout.xaxis._length / (shown[1] - shown[0]);
    const rows = new Set(y).size;
    const apart = x.length > rows ? ((x[x.length - 1] - x[0]) / (x.length - 1)) * rows * perUnit : Infinity;
    Plotly.restyle(timeline, { visible: apart > 62 }, [begins]);
  }

  function show(start, end) {
    const [low, high] = views.all;
    const width = Math.min(end - start, high - low);
    const from = Math.min(Math.max(start, low), high - width);
    shown = [from, from + width];
    Plotly.relayout(timeline, { "xaxis.range": shown.slice() });
  }

  /* Each label goes beside its mark, where it covers the least of other marks, labels and the edge. */
  function place() {
    const full = frontier._fullLayout;
    const pen = document.createElement("canvas").getContext("2d");
    pen.font = `13px ${full.font.family}`;
    const marks = frontier.layout.meta.labels.map(({ x, y }) => [full.xaxis.l2p(x), full.yaxis.l2p(y)]);
    const taken = [...drawn(full, "markers", corner).map((at) => around(at, 9)), ...drawn(full, "lines", between).map((at) => around(at, 4))];
    const sides = [[1, 0], [-1, 0], [0, -1], [0, 1], [1, -1], [-1, -1], [1, 1], [-1, 1]];
    const annotations = frontier.layout.meta.labels.map(({ x, y, text }, index) => {
      const [left, top] = marks[index];
      const width = pen.measureText(text).width + 4;
      const boxes = [12, 26].flatMap((away) => sides.map(([across, down]) => {
        const middle = [left + across * (away + width / 2) * (down ? 0.8 : 1), top + down * (away + 4)];
        return [middle[0] - width / 2, middle[1] - 9, middle[0] + width / 2, middle[1] + 9];
      }));
      const cost = (box) => taken.reduce((sum, other) => sum + common(box, other), outside(box, full));
      const best = boxes.reduce((found, box) => (cost(box) < cost(found) - 1 ? box : found));
      taken.push(best);
      return { x, y, text, showarrow: false, xshift: (best[0] + best[2]) / 2 - left, yshift: top - (best[1] + best[3]) / 2 };
    });
    Plotly.relayout(frontier, { annotations });
  }

  function around([x, y], away) {
    return [x - away, y - away, x + away, y + away];
  }

  /* Places, in pixels, that traces of this mode cover. */
  function drawn(full, mode, places) {
    return frontier.data.filter((trace) => trace.mode === mode).flatMap(({ x, y }) =>
      x.map((_, index) => [full.xaxis.l2p(x[index]), full.yaxis.l2p(y[index])]).flatMap(places));
  }

  const corner = (at) => [at];

  /* Every few pixels on the line from the corner before. */
  function between([right, high], index, corners) {
    if (index === 0) return [];
    const [left, low] = corners[index - 1];
    const count = Math.ceil(Math.hypot(right - left, high - low) / 8);
    return Array.from({ length: count }, (_, step) => {
      const share = (step + 0.5) / count;
      return [left + share * (right - left), low + share * (high - low)];
    });
  }

  function common(box, other) {
    const wide = Math.min(box[2], other[2]) - Math.max(box[0], other[0]);
    const high = Math.min(box[3], other[3]) - Math.max(box[1], other[1]);
    return wide > 0 && high > 0 ? wide * high : 0;
  }

  function outside(box, full) {
    const [wide, high] = [full.xaxis._length, full.yaxis._length];
    return 1000 * [-box[0], -box[1], box[2] - wide, box[3] - high].reduce((sum, over) => sum + Math.max(0, over), 0);
  }

  for (const button of document.querySelectorAll("button")) {
    button.addEventListener("click", () => {
      const [start, end] = shown;
      const { move, zoom } = button.dataset;
      if (zoom === "all") show(...views.all);
      else if (move) show(start + move * (end - start), end + move * (end - start));
      else show((start + end) / 2 - (zoom * (end - start)) / 2, (start + end) / 2 + (zoom * (end - start)) / 2);
    });
  }

  draw();
  timeline.on("plotly_relayout", () => {
    shown = timeline.layout.xaxis.range.slice();
    thin();
  });
  dark.addEventListener("change", draw);
  let resized;
  addEventListener("resize", () => {
    clearTimeout(resized);
    resized = setTimeout(draw, 200);
  });
}

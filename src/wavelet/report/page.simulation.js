"use strict";
{
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");

  function draw() {
    const narrow = document.querySelector("main").clientWidth < 600;
    for (const [id, schemes] of Object.entries(figures)) {
      const { data, layout } = structuredClone(schemes[dark.matches ? "dark" : "light"]);
      if (narrow) {
        layout.margin.r = id === "bandwidth" ? 36 : 12;
        layout.margin.l = id === "parts" ? 92 : 56;
        while (layout.xaxis.tickvals?.length > 4) { // there is no room for more
          layout.xaxis.tickvals = layout.xaxis.tickvals.filter((_, index) => index % 2 === 0);
          layout.xaxis.ticktext = layout.xaxis.ticktext.filter((_, index) => index % 2 === 0);
        }
      }
      Plotly.react(id, data, layout, { displayModeBar: false, responsive: true });
    }
  }

  draw();
  dark.addEventListener("change", draw);
  let resized;
  addEventListener("resize", () => {
    clearTimeout(resized);
    resized = setTimeout(draw, 200);
  });
}

// Runs before anything is painted, so that the page does not flash in the other theme.
document.documentElement.dataset.theme = localStorage.getItem("triax.theme") || "auto";

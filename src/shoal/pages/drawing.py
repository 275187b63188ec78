"""Figures as PNG and PDF: a quiet common style that can be read in grey."""

import io
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from shoal.disk.runs import write_whole
from shoal.figures import Figure, Panel
from shoal.pages.scales import measured_ticks, quantile_levels

STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
MARKERS = ("o", "s", "^", "D", "v", "P")
# dark to light, so that the order survives a copier
COLOURS = ("#1b3a5c", "#b5432e", "#3f8f6b", "#c98a1b", "#7a5aa6", "#8c8c8c")


def draw(figure: Figure) -> Any:
    """The figure as a matplotlib figure; the caller closes it."""
    import matplotlib.pyplot as plt

    rules: Any = {
        "font.size": 9, "legend.frameon": False, "pdf.fonttype": 42,
        "axes.spines.top": False, "axes.spines.right": False,
        "axes.titlesize": 9, "axes.titlelocation": "left",
        "axes.grid": True, "grid.alpha": 0.25, "grid.linewidth": 0.5,
    }  # fmt: skip
    with plt.rc_context(rules):
        count = len(figure.panels)
        columns = min(count, 4)
        lines = -(-count // columns)
        size = (3.4 * columns if count > 1 else 4.2, 3.1 * lines + 0.5)
        page, axes = plt.subplots(lines, columns, figsize=size, squeeze=False, layout="constrained")
        for axis in axes.flat[count:]:
            axis.set_visible(False)
        images = [image.values.max() for panel in figure.panels for image in panel.images]
        for k, panel in enumerate(figure.panels):
            if panel.solid:
                axes.flat[k].remove()
                _solid(page.add_subplot(lines, columns, k + 1, projection="3d"), panel)
            else:
                _panel(page, axes.flat[k], panel, max(images, default=1.0))
        page.suptitle(figure.title, fontsize=10, x=0.01, ha="left")
        for _ in range(2):  # the room that the first layout leaves may change the ticks
            page.draw_without_rendering()
    return page


def _panel(page: Any, axis: Any, panel: Panel, darkest: float) -> None:
    from matplotlib.colors import BoundaryNorm

    title, y_label = textwrap.fill(panel.title, 40), textwrap.fill(panel.y_label, 40)
    axis.set(title=title, xlabel=panel.x_label, ylabel=y_label)
    if (plane := panel.surface) is not None:
        axis.grid(visible=False)
        levels = quantile_levels(plane.values)
        even = BoundaryNorm(levels, 256)  # as many greys for the basin as for the walls
        shown = axis.contourf(plane.x, plane.y, plane.values, levels, cmap="Greys_r", norm=even)
        axis.contour(plane.x, plane.y, plane.values, levels=levels, colors="k", linewidths=0.3)
        page.colorbar(shown, ax=axis, shrink=0.8, format="%.3g")
    for k, curve in enumerate(panel.curves):
        few = len(curve.x) <= 12 or panel.points
        colour = COLOURS[k % len(COLOURS)]
        axis.plot(
            curve.x, curve.y, color=colour, label=curve.label, linewidth=1.4, markersize=4,
            linestyle="" if panel.points else STYLES[k % len(STYLES)],
            marker=MARKERS[k % len(MARKERS)] if few else None,
        )  # fmt: skip
        axis.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)
    for name, level in panel.limits:
        axis.axhline(level, color="#b5432e", linewidth=0.9, linestyle=(0, (5, 3)))
        axis.annotate(name, (1, level), xycoords=("axes fraction", "data"), fontsize=7,
                      ha="right", va="bottom", color="#b5432e")  # fmt: skip
    for image in panel.images[:1]:
        axis.grid(visible=False)
        shown = axis.imshow(image.values, cmap="Greys", vmin=0, vmax=darkest)  # one scale for all
        page.colorbar(shown, ax=axis, shrink=0.8)
    if panel.log_x:
        axis.set_xscale("log")
        _few_ticks(axis.xaxis, np.unique(np.concatenate([c.x for c in panel.curves])))
    if panel.log_y:
        axis.set_yscale("log")
    if len(panel.curves) > 1 or any(len(curve.label) > 20 for curve in panel.curves):
        # below the axes, where no curve can run through it
        columns = 1 if any(len(curve.label) > 24 for curve in panel.curves) else 2
        axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=columns)


def _few_ticks(axis: Any, values: np.ndarray) -> None:
    """On a short logarithmic axis, label the measured places: powers of ten would be too few."""
    from matplotlib.ticker import NullLocator

    if (chosen := measured_ticks(values.tolist(), log=True)) is None:
        return
    axis.set_ticks(chosen, labels=[f"{x:.2g}" if x < 1 else f"{x:g}" for x in chosen])
    axis.set_minor_locator(NullLocator())


def _solid(axis: Any, panel: Panel) -> None:
    plane: Any = panel.surface
    axis.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    # a wall at the rim would flatten everything else: the highest tenth is cut
    top = np.nanquantile(np.where(np.isfinite(plane.values), plane.values, np.nan), 0.9)
    x, y = np.meshgrid(plane.x, plane.y)
    axis.plot_surface(x, y, np.minimum(plane.values, top), cmap="Greys_r", linewidth=0.1)
    axis.tick_params(labelsize=6, pad=0)
    axis.locator_params(nbins=4)  # more labels run into each other


def save(figure: Figure, folder: Path) -> list[Path]:
    """Write PNG and PDF."""
    import matplotlib.pyplot as plt

    page, paths = draw(figure), []
    options: dict[str, Any] = {"png": {"dpi": 160}, "pdf": {"metadata": {"CreationDate": None}}}
    for end, more in options.items():
        buffer = io.BytesIO()
        with plt.rc_context({"axes.formatter.min_exponent": 2}):  # 0.2 and 3, not 2 x 10^-1
            page.savefig(buffer, format=end, **more)
        paths.append(folder / f"{figure.key}.{end}")
        write_whole(paths[-1], buffer.getvalue())
    plt.close(page)
    return paths

"""Finds texts that are hard to read: by the contrast that WCAG 2 asks for at level AA."""

from typing import cast

from playwright.async_api import Page

_SCRIPT = """
() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]));
  const ground = (element) => {
    if (!element) return [255, 255, 255];
    const own = rgba(getComputedStyle(element).backgroundColor);
    return own[3] === 1 ? own.slice(0, 3) : over(own, ground(element.parentElement));
  };
  const luminance = (colour) => {
    const [r, g, b] = colour.map((c) => c / 255).map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const faint = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.textContent.trim();
    if (!text || !element.checkVisibility() || element.closest("script, .sr")) continue;
    const style = getComputedStyle(element);
    const below = ground(element);
    const [high, low] = [luminance(over(rgba(style.color), below)), luminance(below)].sort((a, b) => b - a);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < (large ? 3 : 4.5)) faint.push(`${text.slice(0, 40)} (${ratio.toFixed(2)})`);
  }
  return faint;
}
"""


async def faint_texts(page: Page) -> list[str]:
    """Return the visible texts of a page whose contrast is too low, with the contrast."""
    return cast("list[str]", await page.evaluate(_SCRIPT))

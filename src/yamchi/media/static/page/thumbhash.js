// A ThumbHash, as the API gives it in `placeholder`, as a small picture to show until the real one is there.

const SIDE = 32;

/** The address of a picture (data:) of a placeholder in hexadecimal digits. */
export function placeholderURL(hex) {
  const hash = read(hex);
  const [width, height] = hash.ratio > 1 ? [SIDE, Math.round(SIDE / hash.ratio)] : [Math.round(SIDE * hash.ratio), SIDE];
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = canvas.getContext("2d");
  const picture = context.createImageData(width, height);
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) {
      picture.data.set(color(hash, (x + 0.5) / width, (y + 0.5) / height), 4 * (y * width + x));
    }
  }
  context.putImageData(picture, 0, 0);
  return canvas.toDataURL();
}

function read(hex) {
  const bytes = hex.match(/../g).map((digits) => parseInt(digits, 16));
  const head = bytes[0] | (bytes[1] << 8) | (bytes[2] << 16);
  const tail = bytes[3] | (bytes[4] << 8);
  const hasAlpha = Boolean(head >> 23);
  const isLandscape = Boolean(tail >> 15);
  const [longer, shorter] = [hasAlpha ? 5 : 7, Math.max(1, tail & 7)];
  const [across, down] = isLandscape ? [longer, shorter] : [shorter, longer];
  const nibbles = bytes.slice(hasAlpha ? 6 : 5).flatMap((byte) => [byte & 15, byte >> 4]).values();
  const waves = (nx, ny, strength) => {
    const found = [];
    for (let y = 0; y < ny; y += 1) {
      for (let x = y ? 0 : 1; x * ny < nx * (ny - y); x += 1) found.push([x, y, (nibbles.next().value / 7.5 - 1) * strength]);
    }
    return found;
  };
  const channel = (mean, nx, ny, strength) => ({ mean, waves: waves(nx, ny, strength) });
  // In this order they lie in the bytes.
  const light = channel((head & 63) / 63, Math.max(3, across), Math.max(3, down), ((head >> 18) & 31) / 31);
  const yellow = channel(((head >> 6) & 63) / 31.5 - 1, 3, 3, (((tail >> 3) & 63) / 63) * 1.25);
  const red = channel(((head >> 12) & 63) / 31.5 - 1, 3, 3, (((tail >> 9) & 63) / 63) * 1.25);
  const alpha = hasAlpha ? channel((bytes[5] & 15) / 15, 5, 5, (bytes[5] >> 4) / 15) : { mean: 1, waves: [] };
  return { light, yellow, red, alpha, ratio: across / down };
}

function color({ light, yellow, red, alpha }, x, y) {
  const at = ({ mean, waves }) =>
    waves.reduce((sum, [nx, ny, strength]) => sum + 2 * strength * Math.cos(Math.PI * nx * x) * Math.cos(Math.PI * ny * y), mean);
  const [l, p, q] = [at(light), at(yellow), at(red)];
  const b = l - (2 / 3) * p;
  const r = (3 * l - b + q) / 2;
  return [r, r - q, b, at(alpha)].map((value) => Math.round(255 * Math.min(1, Math.max(0, value))));
}

/* Raw DEFLATE (RFC 1951) into `size` bytes. The browser's own decompressor answers only after the page has loaded. */
const inflate = (packed, size) => {
  const out = new Uint8Array(size);
  let read = 0, written = 0, held = 0, count = 0;
  const fill = (wanted) => {
    for (; count < wanted; count += 8) held |= packed[read++] << count;
  };
  const bits = (wanted) => {
    fill(wanted);
    const value = held & ((1 << wanted) - 1);
    held >>>= wanted;
    count -= wanted;
    return value;
  };
  /* By the next 15 bits the symbol and the length of its code. Codes are read from their highest bit on. */
  const tableOf = (lengths) => {
    const table = new Uint16Array(1 << 15);
    for (let length = 1, code = 0; length <= 15; length++, code <<= 1)
      for (let symbol = 0; symbol < lengths.length; symbol++) {
        if (lengths[symbol] !== length) continue;
        let first = 0;
        for (let i = 0; i < length; i++) first |= ((code >> i) & 1) << (length - 1 - i);
        for (let i = first; i < table.length; i += 1 << length) table[i] = (symbol << 4) | length;
        code++;
      }
    return table;
  };
  const symbolOf = (table) => {
    fill(15);
    const found = table[held & 0x7fff];
    held >>>= found & 15;
    count -= found & 15;
    return found >> 4;
  };
  const fixed = () => [
    Array.from({ length: 288 }, (_, i) => (i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8)),
    new Array(30).fill(5),
  ];
  const recorded = () => {
    const literals = bits(5) + 257, distances = bits(5) + 1, known = bits(4) + 4, own = new Array(19).fill(0);
    for (const i of [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15].slice(0, known)) own[i] = bits(3);
    const table = tableOf(own), lengths = [];
    while (lengths.length < literals + distances) {
      const symbol = symbolOf(table);
      if (symbol < 16) lengths.push(symbol);
      else {
        const again = symbol === 16 ? lengths[lengths.length - 1] : 0;
        const times = symbol === 16 ? 3 + bits(2) : symbol === 17 ? 3 + bits(3) : 11 + bits(7);
        for (let i = 0; i < times; i++) lengths.push(again);
      }
    }
    return [lengths.slice(0, literals), lengths.slice(literals)];
  };
  for (let last = 0; !last; ) {
    last = bits(1);
    const kind = bits(2);
    if (kind === 0) {
      bits(count & 7);
      const length = bits(16);
      bits(16);
      for (let i = 0; i < length; i++) out[written++] = bits(8);
      continue;
    }
    const [literals, distances] = (kind === 1 ? fixed() : recorded()).map(tableOf);
    for (let symbol = symbolOf(literals); symbol !== 256; symbol = symbolOf(literals)) {
      if (symbol < 256) {
        out[written++] = symbol;
        continue;
      }
      /* Lengths from 3 on in groups of four, distances from 1 on in groups of two, each group of twice the width. */
      const a = symbol - 257, wide = (a >> 2) - 1;
      const length = a < 8 ? a + 3 : a === 28 ? 258 : ((4 + (a & 3)) << wide) + 3 + bits(wide);
      const b = symbolOf(distances), far = (b >> 1) - 1;
      const back = b < 4 ? b + 1 : ((2 + (b & 1)) << far) + 1 + bits(far);
      for (const end = written + length; written < end; written++) out[written] = out[written - back];
    }
  }
  return out;
};

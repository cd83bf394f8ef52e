/* CRC-32C: by the processor's own instruction where it has one, found out when the program runs, else by tables. */

#ifndef OMQ_CRC32C_H
#define OMQ_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define OMQ_POLYNOMIAL 0x82F63B78u  /* the polynomial of CRC-32C, its bits reversed */

static uint32_t omq_crc_table[8][256];

static void omq_crc_make_table(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? OMQ_POLYNOMIAL : 0);
        omq_crc_table[0][byte] = crc;
    }
    for (int table = 1; table < 8; table++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t crc = omq_crc_table[table - 1][byte];
            omq_crc_table[table][byte] = crc >> 8 ^ omq_crc_table[0][crc & 255];
        }
}

/* Eight bytes a step, a table each. */
static uint32_t omq_crc_by_table(uint32_t crc, const uint8_t *data, size_t size) {
    crc = ~crc;
    while (size >= 8) {
        uint32_t low = crc ^ ((uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16
                              | (uint32_t)data[3] << 24);
        crc = omq_crc_table[7][low & 255] ^ omq_crc_table[6][low >> 8 & 255]
            ^ omq_crc_table[5][low >> 16 & 255] ^ omq_crc_table[4][low >> 24]
            ^ omq_crc_table[3][data[4]] ^ omq_crc_table[2][data[5]]
            ^ omq_crc_table[1][data[6]] ^ omq_crc_table[0][data[7]];
        data += 8;
        size -= 8;
    }
    while (size--) crc = crc >> 8 ^ omq_crc_table[0][(crc ^ *data++) & 255];
    return ~crc;
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <nmmintrin.h>
#include <wmmintrin.h>

/* x to the power of 64 n - 33, modulo the polynomial: carries a remainder over n words. */
#define OMQ_CRC_LONGEST 128  /* words in each of three streams */
static uint32_t omq_crc_power[2 * OMQ_CRC_LONGEST + 1];

static void omq_crc_make_powers(void) {
    uint32_t power = 1;  /* x^31 */
    for (int n = 1; n <= 2 * OMQ_CRC_LONGEST; n++) {
        omq_crc_power[n] = power;
        for (int bit = 0; bit < 64; bit++) power = power >> 1 ^ (power & 1 ? OMQ_POLYNOMIAL : 0);
    }
}

static inline uint64_t omq_word(const uint8_t *data) {
    uint64_t word;
    memcpy(&word, data, 8);
    return word;
}

/* The instruction takes one word a clock but answers after three: three streams run side by side, and what the first
   two found is carried over to the end by a multiplication. */
#ifdef __clang__
#define OMQ_CRC_TARGET "sse4.2,crc32,pclmul" /* gcc counts crc32 among sse4.2 */
#else
#define OMQ_CRC_TARGET "sse4.2,pclmul"
#endif
__attribute__((target(OMQ_CRC_TARGET)))
static uint32_t omq_crc_by_instruction(uint32_t start, const uint8_t *data, size_t size) {
    uint64_t first = (uint32_t)~start;
    while (size >= 96) {
        size_t words = size / 24 < OMQ_CRC_LONGEST ? size / 24 : OMQ_CRC_LONGEST, bytes = 8 * words;
        uint64_t second = 0, third = 0;
        const uint8_t *last = data + bytes - 8;
        for (; data < last; data += 8) {
            first = _mm_crc32_u64(first, omq_word(data));
            second = _mm_crc32_u64(second, omq_word(data + bytes));
            third = _mm_crc32_u64(third, omq_word(data + 2 * bytes));
        }
        first = _mm_crc32_u64(first, omq_word(data));
        second = _mm_crc32_u64(second, omq_word(data + bytes));
        __m128i carried = _mm_xor_si128(
            _mm_clmulepi64_si128(_mm_cvtsi32_si128((int)first), _mm_cvtsi32_si128((int)omq_crc_power[2 * words]), 0),
            _mm_clmulepi64_si128(_mm_cvtsi32_si128((int)second), _mm_cvtsi32_si128((int)omq_crc_power[words]), 0));
        first = _mm_crc32_u64(third, omq_word(data + 2 * bytes) ^ (uint64_t)_mm_cvtsi128_si64(carried));
        data += 2 * bytes + 8;
        size -= 3 * bytes;
    }
    for (; size >= 8; data += 8, size -= 8) first = _mm_crc32_u64(first, omq_word(data));
    uint32_t crc = (uint32_t)first;
    while (size--) crc = _mm_crc32_u8(crc, *data++);
    return ~crc;
}
#endif

static uint32_t (*omq_crc)(uint32_t, const uint8_t *, size_t) = omq_crc_by_table;

/* Whether the processor helps. */
static int omq_crc_choose(void) {
    omq_crc_make_table();
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul")) {
        omq_crc_make_powers();
        omq_crc = omq_crc_by_instruction;
        return 1;
    }
#endif
    return 0;
}

#endif

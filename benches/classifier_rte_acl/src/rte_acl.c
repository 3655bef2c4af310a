/* DPDK's rte_acl behind four functions: one category, five fields, the rule's position as the result. */
#include <rte_acl.h>
#include <rte_eal.h>
#include <rte_memory.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>

/* In the order of the fields that rte_acl sees, addresses and ports in network order. */
struct key {
    uint8_t protocol;
    uint8_t pad[3];
    uint32_t src, dst;
    uint16_t src_port, dst_port;
};

struct rule {
    uint32_t src, dst;
    uint16_t src_low, src_high, dst_low, dst_high;
    uint8_t src_length, dst_length, protocol, protocol_mask;
};

RTE_ACL_RULE_DEF(acl_rule, 5);

static const struct rte_acl_field_def fields[5] = {
    {RTE_ACL_FIELD_TYPE_BITMASK, 1, 0, 0, offsetof(struct key, protocol)},
    {RTE_ACL_FIELD_TYPE_MASK, 4, 1, 1, offsetof(struct key, src)},
    {RTE_ACL_FIELD_TYPE_MASK, 4, 2, 2, offsetof(struct key, dst)},
    {RTE_ACL_FIELD_TYPE_RANGE, 2, 3, 3, offsetof(struct key, src_port)},
    {RTE_ACL_FIELD_TYPE_RANGE, 2, 4, 3, offsetof(struct key, dst_port)},
};

static int to_huge_pages(const struct rte_memseg_list *list, void *unused) {
    (void)unused;
    madvise(list->base_va, list->len, MADV_HUGEPAGE);
    return 0;
}

int bench_acl_start(int simd_bits) {
    char simd[64];
    snprintf(simd, sizeof simd, "--force-max-simd-bitwidth=%d", simd_bits);
    char *args[] = {"bench", "--no-huge", "--no-pci", "--no-shconf", "--no-telemetry", "--log-level=error", "-m", "6000",
                    simd, NULL};
    int started = rte_eal_init(9, args);
    if (started >= 0)
        rte_memseg_list_walk(to_huge_pages, NULL);
    return started;
}

void *bench_acl_build(const struct rule *rules, uint32_t count, uint64_t max_size) {
    struct rte_acl_param param = {"bench", 0, RTE_ACL_RULE_SZ(5), count + 1};
    struct rte_acl_ctx *acl = rte_acl_create(&param);
    if (acl == NULL)
        return NULL;
    for (uint32_t at = 0; at < count; at++) {
        const struct rule *from = &rules[at];
        struct acl_rule to = {0};
        to.data.category_mask = 1;
        to.data.priority = (int32_t)(RTE_ACL_MAX_PRIORITY - at);
        to.data.userdata = at + 1;
        to.field[0].value.u8 = from->protocol;
        to.field[0].mask_range.u8 = from->protocol_mask;
        to.field[1].value.u32 = from->src;
        to.field[1].mask_range.u32 = from->src_length;
        to.field[2].value.u32 = from->dst;
        to.field[2].mask_range.u32 = from->dst_length;
        to.field[3].value.u16 = from->src_low;
        to.field[3].mask_range.u16 = from->src_high;
        to.field[4].value.u16 = from->dst_low;
        to.field[4].mask_range.u16 = from->dst_high;
        if (rte_acl_add_rules(acl, (struct rte_acl_rule *)&to, 1) != 0) {
            rte_acl_free(acl);
            return NULL;
        }
    }
    struct rte_acl_config config = {.num_categories = 1, .num_fields = 5, .max_size = max_size};
    for (int at = 0; at < 5; at++)
        config.defs[at] = fields[at];
    if (rte_acl_build(acl, &config) != 0) {
        rte_acl_free(acl);
        return NULL;
    }
    return acl;
}

/* The numbers are positions in ALGORITHMS of main.rs; negative when the CPU or the library lacks it. */
int bench_acl_algorithm(void *acl, int algorithm) {
    static const enum rte_acl_classify_alg all[] = {RTE_ACL_CLASSIFY_SCALAR, RTE_ACL_CLASSIFY_SSE, RTE_ACL_CLASSIFY_AVX2,
                                                    RTE_ACL_CLASSIFY_AVX512X16, RTE_ACL_CLASSIFY_AVX512X32};
    return rte_acl_set_ctx_classify(acl, all[algorithm]);
}

void bench_acl_classify(void *acl, const uint8_t **keys, uint32_t *results, uint32_t count) {
    rte_acl_classify(acl, keys, results, count, 1);
}

void bench_acl_free(void *acl) { rte_acl_free(acl); }

package io.holdfast;

import java.util.Optional;

/**
 * Who leads.
 *
 * @param leader empty if nobody does
 * @param known false while the store cannot be asked
 */
public record Observation(Optional<Claim> leader, boolean known) { }

macro_rules! defects { ($($(#[doc = $doc:literal])+ $defect:ident $name:literal: $($case:ident)+;)+) => {
    /// What is wrong with a broken locker.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    #[non_exhaustive]
    pub enum Defect {
        /// Nothing is.
        Nothing,
        /// Nothing is, and its holds have records of the wrapper's own, as those of some defects.
        NothingButARecordOfItsOwn,
        $($(#[doc = $doc])+ $defect),+
    }

    impl Defect {
        /// Every defect.
        #[must_use]
        pub fn all() -> &'static [Self] {
            &[$(Self::$defect),+]
        }

        /// What the broken locker is called.
        #[must_use]
        pub fn name(self) -> &'static str {
            match self {
                Self::Nothing => "sound",
                Self::NothingButARecordOfItsOwn => "sound_with_a_record_of_its_own",
                $(Self::$defect => $name),+
            }
        }

        /// The defect that this case, or the sweep of this operation, must find.
        #[must_use]
        pub fn caught_by(case: &str) -> Option<Self> {
            match case {
                $($(stringify!($case))|+ => Some(Self::$defect),)+
                _ => None,
            }
        }
    }
} }

defects! {
    /// Its lockers have a store each.
    SharesNothing "shares_nothing": held_key_is_refused_to_another_locker;
    /// It looks whether a key is free, and takes it a moment later.
    LooksBeforeItLeaps "looks_before_it_leaps":
        crowd_of_tries_has_one_winner_and_every_loser_is_contended
        crowd_of_waiters_holds_one_at_a_time_and_everybody_gets_a_turn
        crowd_of_bodies_runs_one_at_a_time;
    /// It does not know its own holds.
    SaysHeldForItsOwn "says_held_for_its_own":
        key_held_by_this_very_locker_is_refused_as_held_here
        key_of_a_body_is_refused_to_its_own_locker_as_held_here;
    /// Contention is an error.
    RaisesContention "raises_contention": contention_is_an_answer_and_never_an_error;
    /// All keys are one.
    HasOneLockForAllKeys "has_one_lock_for_all_keys":
        distinct_keys_are_independent hold_names_its_key
        bodies_under_distinct_keys_run_side_by_side body_can_run_another_under_another_key;
    /// Names are trimmed and put into small letters.
    FoldsNames "folds_names": odd_names_are_distinct_keys;
    /// Of a name, the first 500 bytes count.
    CutsLongNames "cuts_long_names": longest_name_is_an_ordinary_key;

    /// The holder sees no deadline and is not told of its end.
    HidesTheDeadline "hides_the_deadline":
        fresh_hold_counts_down_from_its_ttl holder_is_told_of_the_end_of_its_ttl
        near_deadline_completes_while_something_is_left;
    /// The key is free after half its TTL.
    FreesBeforeTelling "frees_before_telling":
        key_is_free_by_the_end_of_its_ttl_and_not_before_the_holder_was_told;
    /// The key stays taken after the end of its TTL.
    KeepsLapsedKeys "keeps_lapsed_keys": waiter_gets_the_key_at_the_end_of_the_ttl renewal_can_shorten_a_hold;
    /// A release that finds the hold over fails.
    RaisesLosses "raises_losses": release_after_the_ttl_says_lapsed_or_lost;
    /// Giving up frees the key, whoever holds it.
    FreesByName "frees_by_name":
        guard_that_outlived_its_ttl_leaves_the_next_holder_alone
        guard_of_a_closed_locker_leaves_the_next_holder_alone;
    /// A TTL below its minimum is taken for its minimum.
    RoundsShortTtlsUp "rounds_short_ttls_up": ttl_below_the_minimum_is_refused_naming_value_and_rule;
    /// Its minimum is greater than it says.
    RefusesItsOwnMinimum "refuses_its_own_minimum": smallest_ttl_is_taken;
    /// A long TTL is an internal failure.
    CannotCountThatFar "cannot_count_that_far": longest_ttl_is_taken_or_refused_as_invalid;
    /// A hold without TTL has one.
    EndsHoldsWithoutTtl "ends_holds_without_ttl": hold_without_ttl_stays_until_it_is_released;

    /// A renewal does not reach the store.
    RenewsInWordsOnly "renews_in_words_only":
        renewal_keeps_the_key_past_its_first_ttl renewal_keeps_a_waiter_out_past_the_first_ttl
        run_renews_past_the_ttl_and_keeps_others_out;
    /// A renewal does not reach the holder's view.
    RenewsInSecret "renews_in_secret": renewal_moves_the_deadline_the_holder_sees;
    /// A renewal that finds the hold over takes the key anew.
    Revives "revives": renewal_never_revives_a_lapsed_hold renewal_never_revives_a_lost_hold;
    /// A renewal that is refused ends the hold.
    EndsWhatItRefusesToRenew "ends_what_it_refuses_to_renew": refused_renewal_keeps_the_hold_as_it_was;

    /// A release that frees the key says that it was over.
    SaysLapsed "says_lapsed": release_of_a_held_key_says_released;
    /// A release does not free the key.
    ForgetsToFree "forgets_to_free":
        released_key_is_free key_is_free_after_its_body key_is_free_after_a_body_that_failed;
    /// There are eight grants in all.
    LeaksAConnectionPerGrant "leaks_a_connection_per_grant": key_can_be_taken_again_and_again;
    /// A drop does not free the key.
    FreesOnReleaseOnly "frees_on_release_only":
        dropped_guard_frees_the_key dropped_release_frees_the_key cancelled_run_drops_its_body_and_frees_the_key;
    /// A drop leaves the work to the runtime that happens to be there.
    FreesInASpawnedTask "frees_in_a_spawned_task":
        guard_dropped_without_a_runtime_frees_the_key guard_dropped_in_another_runtime_frees_the_key
        guard_dropped_while_its_runtime_is_not_polled_frees_the_key;

    /// Who has to wait waits for ever.
    NeverWakes "never_wakes":
        waiter_gets_the_released_key waiter_gets_the_key_of_a_dropped_guard key_of_a_lost_hold_goes_to_a_waiter
        waiting_body_starts_after_the_other_ended_and_not_before;
    /// A wait of less than a millisecond is one without a limit.
    TakesShortWaitsForNone "takes_short_waits_for_none":
        wait_of_zero_is_a_try sub_millisecond_wait_ends_and_is_no_wait_for_ever
        run_with_a_limit_of_zero_is_a_try run_with_a_sub_millisecond_limit_ends;
    /// Of a wait in milliseconds, the lower 32 bits count, and all ones are none.
    OverflowsHugeWaits "overflows_huge_waits":
        huge_wait_waits_and_gets_the_key run_with_a_huge_limit_waits_and_gets_the_key;
    /// A budget is spent twice.
    WaitsTwice "waits_twice":
        wait_ends_with_its_budget_and_says_so budget_counts_from_the_call_however_often_the_holder_renews
        run_with_a_limit_ends_with_its_budget_and_does_not_run_the_body;
    /// A wait that is used up or dropped goes on and takes the key for nobody.
    WaitsInADetachedTask "waits_in_a_detached_task":
        elapsed_wait_leaves_the_queue dropped_waiter_leaves_the_queue place_of_a_dropped_waiter_goes_to_the_next
        dropped_waiting_run_leaves_the_queue;
    /// It asks for one key at a time.
    WaitsOneAtATime "waits_one_at_a_time": waiters_of_different_keys_do_not_hold_each_other_up;
    /// Waiters poll, the latest most often, and it claims an order.
    PollsInsteadOfQueueing "polls_instead_of_queueing":
        waiters_are_served_in_the_order_they_came try_does_not_get_past_a_waiter
        waiting_bodies_run_in_the_order_they_came;
    /// Step-down requests go nowhere, and it claims to pass them on.
    DropsStepDownRequests "drops_step_down_requests": step_down_request_of_a_waiter_reaches_the_holder;

    /// The holder is not told of a loss, not even by a renewal.
    KeepsLossesToItself "keeps_losses_to_itself":
        loss_is_told_to_the_holder lost_hold_says_so_when_asked
        run_tells_the_work_of_a_loss_and_gives_its_value_back run_drops_work_that_outlasts_its_grace_after_a_loss
        body_is_told_of_a_loss_and_runs_on_and_its_value_comes_back_with_it;
    /// Every release is a success.
    SaysReleasedWhateverHappened "says_released_whatever_happened": release_of_a_lost_hold_says_lost;
    /// The loss of one hold ends all of its locker.
    LosesAllWithOne "loses_all_with_one": loss_of_one_key_leaves_the_others_alone;
    /// A holder is told of a loss that did not happen.
    CriesWolf "cries_wolf": held_and_released_hold_is_never_told_of_a_loss;

    /// It mints no tokens, and claims to.
    ClaimsToMint "claims_to_mint":
        fencing_on_gives_a_token_or_is_refused_as_unsupported fenced_body_sees_a_token_or_is_refused_as_unsupported;
    /// It mints a token although none is wanted.
    MintsAlways "mints_always": fencing_off_gives_no_token body_without_fencing_sees_no_token;
    /// Each locker counts its tokens for itself.
    CountsTokensPerLocker "counts_tokens_per_locker":
        tokens_increase_over_releases_and_drops tokens_increase_over_the_end_of_a_ttl tokens_increase_over_a_loss
        token_of_a_waiter_is_newer_than_that_of_the_holder_it_waited_for tokens_of_bodies_increase;

    /// A closed locker refuses later calls and does nothing about earlier ones.
    ClosesTheDoorOnly "closes_the_door_only":
        close_tells_holders_that_it_was_closed close_frees_the_keys_of_its_locker close_ends_waiters_as_closed
        run_on_a_closed_locker_tells_the_work
        close_tells_the_body_and_its_value_comes_back_with_the_loss close_ends_waiting_runs_as_closed;
    /// A closed locker works on.
    IgnoresClose "ignores_close": closed_locker_refuses_every_later_call closed_scoped_locker_refuses_runs_and_pings;
    /// A second close fails.
    RefusesASecondClose "refuses_a_second_close": close_can_be_repeated close_of_a_scoped_locker_can_be_repeated;
    /// The end of one locker is the end of all.
    ClosesEverybody "closes_everybody":
        close_leaves_other_lockers_alone close_of_a_scoped_locker_leaves_others_alone;
    /// A ping waits until the last key that was asked for is free.
    PingsBehindHolders "pings_behind_holders":
        ping_answers_while_a_key_is_held_and_waited_for ping_answers_while_a_body_runs;
    /// A ping fails.
    NeverAnswersAPing "never_answers_a_ping": ping_of_an_open_locker_answers;

    /// Any grace is taken.
    TakesAnyGrace "takes_any_grace": run_refuses_a_grace_that_does_not_fit_and_does_not_start_the_work;
    /// The clock of a hold stands still.
    StopsTheClock "stops_the_clock": hold_knows_its_age;
    /// It has no name.
    PrintsNothing "prints_nothing": locker_prints_itself scoped_locker_prints_itself;
    /// Its guarantees take two lines.
    PrintsTwoLines "prints_two_lines": guarantees_are_printed_in_one_line;
    /// It is another locker at every call.
    HasANewIdAtEveryCall "has_a_new_id_at_every_call":
        every_locker_has_an_id_of_its_own_that_stays every_scoped_locker_has_an_id_of_its_own_that_stays
        wait_for_a_key_of_the_same_task_is_a_deadlock body_that_waits_for_its_own_key_gets_a_deadlock;
    /// It takes a TTL of nothing, it says.
    HasNoMinimum "has_no_minimum": capabilities_stay_and_name_a_usable_minimum;

    /// A run whose body ended is a failure.
    FailsAfterTheBody "fails_after_the_body":
        body_runs_once_and_its_value_comes_back body_that_fails_is_a_value_and_no_failure_of_the_lock;
    /// A run whose body ended is contended.
    SaysContendedAfterTheBody "says_contended_after_the_body": value_that_looks_like_contention_is_a_value;
    /// The body sees a hold that is not the one it runs under.
    ShowsAnotherHold "shows_another_hold": body_sees_a_valid_hold_of_its_key hold_of_an_ended_run_is_over;
    /// Nobody renews while the body runs.
    NeverRenews "never_renews": body_outlives_the_ttl_and_keeps_others_out;
    /// A panic of the body becomes an error.
    SwallowsPanics "swallows_panics":
        panic_of_a_body_reaches_the_caller_and_the_key_is_free
        panic_of_a_tried_body_reaches_the_caller_and_the_key_is_free;
    /// A cancelled run gives the lock up first and drops the body then.
    FreesBeforeItDropsTheBody "frees_before_it_drops_the_body":
        key_is_not_free_before_the_body_of_a_cancelled_run_is_gone;
    /// The body runs, with the lock or without.
    RunsWithoutTheLock "runs_without_the_lock": contended_try_does_not_run_the_body;
    /// Bodies and session locks use different keys.
    KeepsBodiesApart "keeps_bodies_apart": session_lock_keeps_bodies_out body_keeps_session_locks_out;

    /// A grant has no owner for a moment.
    LeaksBetweenGrantAndGuard "leaks_between_grant_and_guard":
        try_acquire_of_a_free_key acquire_of_a_free_key acquire_within_of_a_free_key
        with_lock_of_a_free_key with_lock_of_a_body_that_panics try_with_lock_of_a_free_key;
    /// A wait that is dropped goes on and takes the key for nobody, as one that is used up does.
    LeavesAGhostInTheQueue "leaves_a_ghost_in_the_queue":
        acquire_of_a_held_key acquire_within_that_elapses with_lock_of_a_held_key with_lock_within_that_elapses
        acquire_of_a_key_of_its_own acquire_within_of_a_key_of_its_own_that_elapses;
    /// Calls start a task and end it when they end, unless they are dropped.
    LeavesATaskBehind "leaves_a_task_behind":
        try_acquire_of_a_held_key ping try_with_lock_of_a_held_key scoped_ping;
    /// A renewal that is dropped takes what could free the key along.
    LosesItsHandleInARenewal "loses_its_handle_in_a_renewal": renew run_under_a_guard;
    /// A release that is dropped does the same.
    LosesItsHandleInARelease "loses_its_handle_in_a_release": release;
    /// A close that was dropped counts as one that was done.
    ClosesOnce "closes_once":
        close_with_a_holder_and_a_waiter scoped_close_with_a_body_and_a_waiting_run;
}

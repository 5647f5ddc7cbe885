//! Series that are made of parts, each of which is one family: a field, its family's name and meaning, once.

use super::{
    families::{Kind, Lines},
    series::{Counter, Histogram},
};

/// What a series may be made of, as the page needs it.
pub(crate) trait Written {
    /// A number that changes whenever the part changes.
    fn activity(&self) -> u64;
    fn lines(&self, to: &mut Lines<'_>);
}

/// What its family is.
pub(crate) trait Part: Written {
    const KIND: Kind;
    /// Labels that come on top of the set's own.
    const LABELS: &'static [&'static str] = &[];
}

impl Written for Counter {
    fn activity(&self) -> u64 {
        self.value()
    }
    fn lines(&self, to: &mut Lines<'_>) {
        to.value("", self.value());
    }
}

impl Part for Counter {
    const KIND: Kind = Kind::Counter;
}

impl Written for Histogram {
    fn activity(&self) -> u64 {
        self.count()
    }
    fn lines(&self, to: &mut Lines<'_>) {
        to.histogram("", self);
    }
}

impl Part for Histogram {
    const KIND: Kind = Kind::Histogram;
}

/// Declares a series: `field: its type = its beginning, the family's name after the set's, what is counted;`.
macro_rules! series {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($field:ident: $part:ty = $new:expr, $family:literal, $help:literal;)+
    }) => {
        $(#[$meta])*
        #[derive(Debug)]
        $vis struct $name {
            $($field: $part,)+
        }

        impl Default for $name {
            fn default() -> Self {
                $name { $($field: $new,)+ }
            }
        }

        impl $name {
            fn parts(&self) -> impl AsRef<[&dyn $crate::metrics::part::Written]> {
                [$(&self.$field as &dyn $crate::metrics::part::Written,)+]
            }
        }

        impl $crate::metrics::series::Series for $name {
            const FAMILIES: &'static [$crate::metrics::families::Family] = &[$(
                $crate::metrics::families::Family::new(
                    $family,
                    <$part as $crate::metrics::part::Part>::KIND,
                    <$part as $crate::metrics::part::Part>::LABELS,
                    $help,
                ),
            )+];
            fn activity(&self) -> u64 {
                self.parts().as_ref().iter().fold(0, |sum, part| sum.wrapping_add(part.activity()))
            }
            fn lines(&self, family: usize, to: &mut $crate::metrics::families::Lines<'_>) {
                self.parts().as_ref()[family].lines(to);
            }
        }
    };
}

pub(crate) use series;

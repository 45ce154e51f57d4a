//! Small systems of linear equations: symmetric, positive semidefinite, at most 64 unknowns.

/// A pivot below this part of its diagonal element means that the row depends on those before it.
const DEPENDENT: f64 = 1e-9;

/// How many products are summed side by side, so that the compiler can use vectors.
const LANES: usize = 8;

/// a·b, of the same length.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; LANES];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest = a_chunks.remainder().iter().zip(b_chunks.remainder());
    let rest: f64 = rest.map(|(a, b)| a * b).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    rest + sums.iter().sum::<f64>()
}

/// A square matrix of fixed room, of which the first rows and columns are in use.
pub(super) struct Square {
    room: usize,
    values: Vec<f64>,
}

impl Square {
    pub fn new(room: usize) -> Self {
        Self { room, values: vec![0.0; room * room] }
    }

    pub fn get(&self, row: usize, column: usize) -> f64 {
        self.values[row * self.room + column]
    }

    pub fn set(&mut self, row: usize, column: usize, value: f64) {
        self.values[row * self.room + column] = value;
    }

    fn row(&self, row: usize, end: usize) -> &[f64] {
        &self.values[row * self.room..row * self.room + end]
    }

    /// Replaces the lower triangle of the first `n` rows by the Cholesky factor. A row that depends
    /// on earlier ones gets the pivot 0, and its unknown the value 0: the paper's pseudo-inverse
    /// does the same for the product, by another choice among equal multipliers.
    fn factor(&mut self, n: usize) {
        for j in 0..n {
            for i in j..n {
                let rest = self.get(i, j) - dot(self.row(i, j), self.row(j, j));
                let value = if i == j {
                    let is_dependent = rest <= DEPENDENT * self.get(j, j);
                    if is_dependent { 0.0 } else { rest.sqrt() }
                } else {
                    let pivot = self.get(j, j);
                    if pivot > 0.0 { rest / pivot } else { 0.0 }
                };
                self.set(i, j, value);
            }
        }
    }

    /// Solves for the first `n` unknowns: `x` is first the right side, then the solution. The
    /// matrix is overwritten.
    pub fn solve(&mut self, n: usize, x: &mut [f64]) {
        self.factor(n);
        for i in 0..n {
            let rest = x[i] - dot(self.row(i, i), &x[..i]);
            x[i] = self.divided(rest, i);
        }
        for i in (0..n).rev() {
            let rest = x[i] - (i + 1..n).map(|k| self.get(k, i) * x[k]).sum::<f64>();
            x[i] = self.divided(rest, i);
        }
    }

    fn divided(&self, rest: f64, row: usize) -> f64 {
        let pivot = self.get(row, row);
        if pivot > 0.0 { rest / pivot } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn solved<const N: usize>(matrix: [[f64; N]; N], mut x: [f64; N]) -> [f64; N] {
        let mut square = Square::new(N + 1);
        for (i, row) in matrix.iter().enumerate() {
            for (j, value) in row.iter().enumerate() {
                square.set(i, j, *value);
            }
        }
        square.solve(N, &mut x);
        x
    }

    #[test]
    fn it_solves_by_hand_computed_systems() {
        assert_eq!(solved([[4.0]], [8.0]), [2.0]);
        // 4 x + 2 y = 10, 2 x + 5 y = 13: x = 1.5, y = 2.
        let [x, y] = solved([[4.0, 2.0], [2.0, 5.0]], [10.0, 13.0]);
        assert!((x - 1.5).abs() < 1e-12 && (y - 2.0).abs() < 1e-12);
    }

    #[test]
    fn a_dependent_row_gets_nothing() {
        let [x, y, z] =
            solved([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 2.0]], [3.0, 3.0, 4.0]);
        assert!((x - 3.0).abs() < 1e-12 && y == 0.0 && (z - 2.0).abs() < 1e-12);
        assert_eq!(solved([[0.0]], [0.0]), [0.0]);
    }
}
